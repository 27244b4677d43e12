"""Finds or makes the converted copy of a checkpoint. Knows file identity and atomic writes; knows no layout."""

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

from rich.progress import Progress

from engine.core.errors import WeightsError
from engine.models.dtype import DtypeName
from engine.weights.cache import cache_folder
from engine.weights.convert import convert
from engine.weights.source import Source

_FORMAT = 1
"""Raised whenever `convert.py` changes its layout, so that older copies are not found."""

_KEPT = 2
"""Copies of one name and dtype that are left: the one just made, and the latest used before it (an edit may be undone)."""

_ABANDONED_S = 3600.0
"""An unfinished copy that nobody has written to for so long is what a killed process left."""

_SAMPLE_BYTES = 1 << 20
_FOLDER_FILES = ("*.json", "*.jinja", "*.safetensors")


def model_name(path: Path) -> str:
    """What a checkpoint is called: a folder's name, or a file's without its ending."""
    return path.name if path.is_dir() else path.stem


def converted_path(path: Path, dtype: str) -> Path:
    """Where the converted copy of the checkpoint `path`, a file or a folder, belongs.

    The name depends on size, time of change and both ends of each file, not on where it lies: a moved file is found
    again, an edited or replaced one is not, and no start has to read gigabytes to know.

    Raises:
        WeightsError: `path` cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for pattern in _FOLDER_FILES for file in path.glob(pattern))
    digest = hashlib.blake2b(f"{_FORMAT}".encode())
    try:
        for own in files:
            stat = own.stat()
            digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
            with own.open("rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(max(0, stat.st_size - _SAMPLE_BYTES))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    name = f"{model_name(path)}-{digest.hexdigest()[:16]}-{dtype}.safetensors"
    return cache_folder() / "converted" / name


def _open(path: Path) -> Source:
    """Opens a checkpoint. Imports here, because readers take time to import and a later start needs none of them."""
    if path.is_dir():
        from engine.weights.huggingface import HuggingFaceSource

        return HuggingFaceSource(path)
    if path.suffix == ".safetensors":
        raise WeightsError(
            f"{path.name}: name the folder that holds it together with its config.json"
        )
    from engine.weights.gguf import GgufSource

    return GgufSource(path)


def ensure_converted(path: Path, dtype: DtypeName, progress: Progress | None = None) -> Path:
    """The converted copy of `path`, made now where it is not there yet; a failed attempt leaves nothing behind.

    Raises:
        WeightsError: `path` is missing, damaged or of an unsupported kind, or the copy cannot be written.
    """
    target = converted_path(path, dtype)
    if target.exists():
        _mark_used(target)
        return target
    source = _open(path)
    task = None if progress is None else progress.add_task(f"Converting {path.name}", total=None)

    def report(done: int, total: int) -> None:
        if progress is not None and task is not None:
            progress.update(task, completed=done, total=total)

    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            convert(source, dtype, temporary, report)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(
            f"the converted copy of {path.name} cannot be written to {target.parent}: {error.strerror or error}"
        ) from error
    except WeightsError as error:
        raise WeightsError(f"{path.name}: {error.message}") from error
    _prune(target, f"{model_name(path)}-", f"-{dtype}.safetensors")
    return target


def _mark_used(copy: Path) -> None:
    """Makes `copy` the latest of its name; a cache that cannot be written stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(copy)


def _prune(target: Path, start: str, end: str) -> None:
    """Removes copies that an edited or replaced checkpoint or an older layout left, and what killed conversions did.

    Nothing is lost: a copy that is wanted again is made again. Who has mapped a removed copy keeps it.
    """
    name = re.compile(re.escape(start) + "[0-9a-f]{16}" + re.escape(end))
    unfinished = re.compile(r"\." + name.pattern + r"\.\d+")
    used: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for own in target.parent.iterdir():
            if name.fullmatch(own.name) and own != target:
                used.append((own.stat().st_mtime, own))
            elif (
                unfinished.fullmatch(own.name) and own.stat().st_mtime < time.time() - _ABANDONED_S
            ):
                own.unlink(missing_ok=True)
        for _, own in sorted(used, reverse=True)[_KEPT - 1 :]:
            own.unlink(missing_ok=True)
