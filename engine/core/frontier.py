"""Frontier: below which entry of the index the next block of each row would go. Knows no content and no index.

With it a row's blocks are made findable when a lookup reaches the place where they would go, or when the row leaves: a decode
step pays nothing for them. A place is the frame of the last block that the row published or shares, or a salt and a key width
where it has none.
"""

from collections.abc import Collection

Place = int | tuple[str, int]


class Frontier:
    """Rows by place, those that came first first. Every operation is O(1)."""

    def __init__(self) -> None:
        self._place_of: dict[int, Place] = {}
        self._rows_at: dict[Place, dict[int, None]] = {}

    def stand(self, row: int, place: Place) -> None:
        """`row` stands at `place` from now on."""
        self.leave(row)
        self._place_of[row] = place
        self._rows_at.setdefault(place, {})[row] = None

    def leave(self, row: int) -> None:
        """`row` has nothing to publish."""
        place = self._place_of.pop(row, None)
        if place is not None:
            rows = self._rows_at[place]
            del rows[row]
            if not rows:
                del self._rows_at[place]

    def rows_at(self, place: Place) -> Collection[int]:
        """Who stands at `place`: valid until the next change."""
        return self._rows_at.get(place, ())
