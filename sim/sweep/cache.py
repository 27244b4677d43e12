"""Results by key in a folder, one file each: complete or absent, whatever interrupts the writing. Knows nothing of what they hold."""

import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.core.errors import ConfigError

T = TypeVar("T")


def write_atomically(path: Path, data: bytes) -> None:
    """The file holds `data`, or what it held before.

    Raises:
        ConfigError: it cannot be written.
    """
    # Named before it is made: Ctrl-C finds no moment at which the file is there and nobody knows of it.
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(data)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def write_result(data: bytes, path: Path, copy: Path | None) -> None:
    """The file of an answer's folder, and a copy where somebody wants one.

    Raises:
        ConfigError: one cannot be written.
    """
    write_atomically(path, data)
    if copy is not None:
        write_atomically(copy, data)


class Cache:
    """JSON of Structs, by key; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        """Makes the folder.

        Raises:
            ConfigError: it cannot be made.
        """
        self._folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"{folder} cannot be made: {error.strerror}") from None

    def get(self, key: str, kind: type[T]) -> T | None:
        """What was put under the key; None where nothing was, or where the file is damaged or of another kind."""
        if self._folder is None:
            return None
        try:
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, key: str, value: object) -> None:
        """Keeps a result.

        Raises:
            ConfigError: it cannot be written.
        """
        if self._folder is not None:
            write_atomically(self._folder / f"{key}.json", msgspec.json.encode(value))
