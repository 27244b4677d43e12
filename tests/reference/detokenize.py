"""Detokenising at once, the obvious way: what every incremental cutting must add up to."""


def decode_and_cut(data: bytes, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text of `data` up to the stop string that ends first (of those that end together, the longest)."""
    text = data.decode("utf-8", errors="replace")
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False
