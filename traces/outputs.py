"""Looks at where results are to go before the work is done that makes them. Writes nothing."""

import os
from pathlib import Path

from engine.core.errors import ConfigError


def check_outputs(
    *files: Path | None, folder: Path | None = None, sources: tuple[Path | None, ...] = ()
) -> None:
    """That each file can be written, that no two are one or go over one of `sources`, and that `folder` is there or can be made; None is passed over.

    Raises:
        ConfigError: one cannot; says what to do about it.
    """
    taken: set[Path] = set()
    for path in files:
        if path is None:
            continue
        if path.exists() and any(
            source is not None and source.exists() and path.samefile(source) for source in sources
        ):
            raise ConfigError(
                f"{path}: cannot be written, for it is what is read; name another file"
            )
        place = path.resolve()
        if place in taken and (path.is_file() or not path.exists()):
            raise ConfigError(f"{path}: cannot be written twice; name a file for each")
        taken.add(place)
        if path.is_dir():
            raise ConfigError(f"{path}: cannot be written, for it is a folder; name a file in it")
        _check_folder(path, path.parent)
        if path.exists() and not os.access(path, os.W_OK):
            raise ConfigError(f"{path}: cannot be written: the file may not be changed")
    if folder is not None and not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"{folder}: cannot be written, for it is a file; name a folder")
        made = next(path for path in folder.absolute().parents if path.exists())
        _check_folder(folder, made)


def _check_folder(path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(
            f"{path}: cannot be written, for there is no folder {folder}; make it first"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: cannot be written: the folder {folder} may not be changed")
