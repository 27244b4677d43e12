"""Compiles the package's entry point once for this host, and keeps it on disk.

Numba's cache notices a change of the file that holds a function, but not of the files that it calls into. So the folder is named
after the sources of the whole package (and Numba and the host's instruction set, which Numba checks itself): edited or upgraded
kernels never meet old machine code. Knows no kernels.
"""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.errors import NumbaError

_LOG = logging.getLogger(__name__)

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


class BuildError(Exception):
    """The kernels cannot be compiled on this machine."""


@functools.cache
def entry() -> Callable[[int, int, int, int, int], None]:
    """`program.enter`, compiled: from disk in about a second, or anew in about twenty, which is logged.

    Where the cache folder cannot be written, every process compiles for itself.

    Raises:
        BuildError: Numba refuses, or the system is not Linux, whose futexes the threads sleep on.
    """
    from kernels.cpu.program import SIGNATURE, enter

    if sys.platform != "linux":
        raise BuildError(f"the kernels need Linux, and this is {sys.platform}")
    folder = build_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = os.access(folder, os.W_OK)
    except OSError:
        kept = False
    if not is_built():
        _LOG.warning(
            "compiling the kernels for this CPU, about twenty seconds%s",
            ", once" if kept else f": {folder} cannot be written, so every start will",
        )
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        compiled = numba.njit(SIGNATURE, nogil=True, cache=kept)(enter)
    except (NumbaError, RuntimeError) as error:
        raise BuildError(f"the kernels cannot be compiled: {error}") from error
    finally:
        settings.CACHE_DIR = before
    if kept:
        _prune(folder)
    result: Callable[[int, int, int, int, int], None] = compiled
    return result


def _prune(own: Path) -> None:
    """Removes builds that edits and upgrades left, never this one. Other processes may be at it too: what is gone is gone."""
    others: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for build in own.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if build != own:
                    others.append((build.stat().st_mtime, build))
    for _, build in sorted(others, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(build, ignore_errors=True)
