"""Loads a model by way of its converted copy, which is made on first sight. Knows files and caches; knows no arithmetic."""

from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.core.errors import WeightsError
from engine.models.dtype import DtypeName, default_dtype
from engine.models.shape import ModelShape
from engine.weights.convert import Meta
from engine.weights.converted import ensure_converted, model_name
from engine.weights.pull import MODEL_MEMBER, default_model, pull_default
from engine.weights.tokenizer_data import TokenizerData


class LoadedModel(Struct, frozen=True, eq=False):
    """A model in the engine's layout (see `convert.py`), its tensors mapped from the converted file."""

    name: str
    """The file's or folder's name; what clients call the model unless told otherwise."""
    title: str
    shape: ModelShape
    dtype: DtypeName
    tensors: dict[str, torch.Tensor]
    """Values by name; mapped read-only pages of the file, so do not write to them."""
    blocks: dict[str, torch.Tensor]
    """Raw quantised rows, `NAME:KIND` to [rows, bytes] uint8."""
    tokenizer: TokenizerData
    ignored: tuple[str, ...]
    """Tensors of the checkpoint that are not used."""


def load_model(
    path: Path | None, dtype: DtypeName | None = None, progress: Progress | None = None
) -> LoadedModel:
    """The model at `path`, or the default model, which is fetched where it is not there yet. `dtype` None: what suits this CPU.

    Raises:
        WeightsError: the file is missing, damaged or of an unsupported kind, it cannot be fetched, or its converted
            copy cannot be written.
    """
    if path is not None:
        _check_there(path)
    else:
        path = default_model() or pull_default(progress)
    dtype = dtype or default_dtype()
    converted = ensure_converted(path, dtype, progress)
    try:
        tensors = load_file(converted)
    except (OSError, SafetensorError):
        converted.unlink(missing_ok=True)
        tensors = load_file(ensure_converted(path, dtype, progress))
    meta = msgspec.msgpack.decode(tensors.pop("meta").numpy().data, type=Meta)
    return LoadedModel(
        name=model_name(path),
        title=meta.title,
        shape=meta.shape,
        dtype=dtype,
        tensors={name: t for name, t in tensors.items() if ":" not in name},
        blocks={name: t for name, t in tensors.items() if ":" in name},
        tokenizer=meta.tokenizer,
        ignored=meta.ignored,
    )


def _check_there(path: Path) -> None:
    """A name of a model, where a file is meant, gets more than the system's words."""
    try:
        path.stat()
    except FileNotFoundError:
        raise WeightsError(
            f"{path}: there is no such file; a model is given as a GGUF file of the Llama family or as its folder, "
            f"and the default is {Path(MODEL_MEMBER).stem}, served without --model"
        ) from None
    except OSError:
        return  # Whoever reads it says what is wrong.
