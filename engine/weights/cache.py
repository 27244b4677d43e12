"""The user's cache folder for fetched and converted models. Knows the environment; knows no formats."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$KILBURN_CACHE`, else `kilburn` in the XDG cache folder. It need not exist yet."""
    if own := os.environ.get("KILBURN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kilburn"
