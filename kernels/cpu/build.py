"""Compiles the package's entry point once for this host, and keeps it on disk.

Numba's cache notices a change of the file that holds a function, but not of the files that it calls into. So the folder is named
after the sources of the whole package (and Numba and the host's instruction set, which Numba checks itself): edited or upgraded
kernels never meet old machine code. Knows no kernels.
"""

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

_KEPT = 3
"""Builds left in the cache: this one and the latest before it."""


def build_folder() -> Path:
    """Where this version's machine code is kept, in the cache folder of `engine/weights/cache.py`."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    own = os.environ.get("KILBURN_CACHE")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else caches / "kilburn") / "kernels" / digest.hexdigest()


def is_built() -> bool:
    """Whether `entry` will find machine code of this version on disk, made by this or a like host."""
    return any(build_folder().rglob("*.nbc"))


@functools.cache
def entry() -> Callable[[int, int, int, int, int], None]:
    """`program.enter`, compiled: from disk in about a second, or anew in about half a minute."""
    from kernels.cpu.program import SIGNATURE, enter

    folder = build_folder()
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        compiled = numba.njit(SIGNATURE, nogil=True, cache=True)(enter)
    finally:
        settings.CACHE_DIR = before
    for old in sorted(folder.parent.iterdir(), key=lambda p: -p.stat().st_mtime)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    result: Callable[[int, int, int, int, int], None] = compiled
    return result
