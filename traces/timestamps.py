"""Text of a point in time to integer nanoseconds. Knows no trace format; never goes through floats."""

import re
from datetime import date
from functools import lru_cache
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000

_SHAPE: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d*))?"
    r" ?(?:([Zz])|([+-])(\d{2}):?(\d{2})?)?",
    re.ASCII,
)


@lru_cache(maxsize=64)
def _day_seconds(day: str) -> int:
    return date.fromisoformat(day).toordinal() * 86_400


def parse_timestamp_ns(text: str) -> int:
    """Nanoseconds since the year 1, UTC, of an ISO 8601 date and time.

    `T` or a space between date and time; any number of fractional digits, those past nanoseconds dropped; `Z`, `+02:00`,
    `+0200`, `+02` or no zone, which counts as UTC.

    Raises:
        ValueError: the text is no such time; the message says what is wrong.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError("is not a time such as 2023-11-16 18:15:46.6805900")
    day, hour, minute, second, fraction, _, sign, zone_hour, zone_minute = match.groups()
    try:
        seconds = _day_seconds(day)
    except ValueError:
        raise ValueError("names a day that no calendar has") from None
    hours, minutes, whole = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or whole > 59:
        raise ValueError("names an hour, minute or second that no clock shows")
    seconds += hours * 3600 + minutes * 60 + whole
    if sign is not None:
        offset = int(zone_hour) * 3600 + int(zone_minute or "0") * 60
        if offset >= 86_400:
            raise ValueError("has a zone offset of a day or more")
        seconds += offset if sign == "-" else -offset
    nanoseconds = int((fraction + "000000000")[:9]) if fraction else 0
    return seconds * NS_PER_SECOND + nanoseconds
