"""Finds or makes the converted copy of a checkpoint. Knows file identity and atomic writes; knows no layout."""

import hashlib
import os
from pathlib import Path

from rich.progress import Progress

from engine.core.errors import WeightsError
from engine.weights.cache import cache_folder
from engine.weights.convert import DtypeName, convert

_FORMAT = 1
"""Raised whenever `convert.py` changes its layout, so that older copies are not found."""

_SAMPLE_BYTES = 1 << 20


def converted_path(path: Path, dtype: str) -> Path:
    """Where the converted copy of the checkpoint `path` belongs.

    The name depends on size, time of change and both ends of the file, not on where it lies: a moved file is found
    again, an edited or replaced one is not, and no start has to read gigabytes to know.

    Raises:
        WeightsError: `path` cannot be read.
    """
    try:
        stat = path.stat()
        digest = hashlib.blake2b(f"{_FORMAT} {stat.st_size} {stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, stat.st_size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    return (
        cache_folder() / "converted" / f"{path.stem}-{digest.hexdigest()[:16]}-{dtype}.safetensors"
    )


def ensure_converted(path: Path, dtype: DtypeName, progress: Progress | None = None) -> Path:
    """The converted copy of `path`, made now where it is not there yet; a failed attempt leaves nothing behind.

    Raises:
        WeightsError: `path` is missing, damaged or of an unsupported kind, or the copy cannot be written.
    """
    target = converted_path(path, dtype)
    if target.exists():
        return target
    from engine.weights.gguf import (
        GgufSource,
    )  # takes 0.15 s to import, and later starts never need it

    source = GgufSource(path)
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
    return target
