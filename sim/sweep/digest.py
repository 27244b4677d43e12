"""What a result depends on, as a hash: the code, the trace's bytes, the settings as resolved. Knows nothing of what is computed."""

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from engine.core.errors import TraceError

PACKAGES: Final = ("engine.core", "sim", "traces")
"""What decides the outcome of a replay."""
_SUFFIXES: Final = (".py", ".toml")
_CHUNK: Final = 1 << 20


@cache
def code_digest() -> str:
    """SHA-256, in hex, of the sources and tables of `PACKAGES`: another version of them computes anew."""
    whole = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            if path.suffix in _SUFFIXES:
                name = f"{package}/{path.relative_to(root).as_posix()}"
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                whole.update(f"{name} {content}\n".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256, in hex, of a file's bytes.

    Raises:
        TraceError: it cannot be read.
    """
    whole = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                whole.update(chunk)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from None
    return whole.hexdigest()


def key_of(*parts: object) -> str:
    """SHA-256, in hex, of the canonical JSON of what a result depends on, the code included."""
    data = msgspec.json.encode([code_digest(), *parts], order="sorted")
    return hashlib.sha256(data).hexdigest()
