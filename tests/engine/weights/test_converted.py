"""The converted copy: made once, found again, replaced when damaged, never left half-written."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.core.errors import WeightsError
from engine.weights.converted import converted_path
from engine.weights.load import load_model
from tests.engine.tiny import Tiny, write_tiny


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILBURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", Tiny(kind=Kind.Q4_1))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing past `size` bytes of any file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_second_load_never_touches_the_gguf_library(tiny: Path) -> None:
    load_model(tiny, "bfloat16")

    script = (
        "import sys; from pathlib import Path; from engine.weights.load import load_model;"
        "model = load_model(Path(sys.argv[1]), 'bfloat16');"
        "assert model.shape.num_layers == 2 and model.tokenizer.tokens[0] == 't0';"
        "sys.exit('gguf' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tiny)], check=False)

    assert done.returncode == 0


def test_each_dtype_has_its_own_copy(tiny: Path, own_cache: Path) -> None:
    load_model(tiny, "bfloat16")
    load_model(tiny, "float32")

    assert len(list(own_cache.glob("converted/*.safetensors"))) == 2


def test_moved_file_is_found_again_and_a_changed_one_is_not(tiny: Path, tmp_path: Path) -> None:
    before = converted_path(tiny, "bfloat16")
    (tmp_path / "other").mkdir()
    moved = tiny.rename(tmp_path / "other" / tiny.name)
    same = converted_path(moved, "bfloat16")
    write_tiny(moved, Tiny(kind=Kind.Q4_1, seed=1))

    assert same == before
    assert converted_path(moved, "bfloat16") != before


@pytest.mark.parametrize("kept", [0, 1000, 200_000])
def test_damaged_copy_is_made_anew(tiny: Path, kept: int) -> None:
    first = load_model(tiny, "float32")
    copy = converted_path(tiny, "float32")
    whole = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(whole[:kept])

    second = load_model(tiny, "float32")

    assert copy.read_bytes() == whole
    assert torch.equal(first.tensors["layers.0.qkv"], second.tensors["layers.0.qkv"])


@pytest.mark.parametrize("room", [0, 5000, 300_000])
def test_full_disk_is_said_plainly_and_leaves_nothing_behind(
    room: int, tiny: Path, own_cache: Path
) -> None:
    with (
        largest_file(room),
        pytest.raises(
            WeightsError, match=r"copy of tiny\.gguf cannot be written to .*converted: File too"
        ),
    ):
        load_model(tiny, "float32")

    assert list((own_cache / "converted").iterdir()) == []
    assert load_model(tiny, "float32").shape.num_layers == 2


def test_cache_folder_that_cannot_be_made_is_said_plainly(tiny: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")

    with pytest.raises(WeightsError, match=r"cannot be written to .*converted: Not a directory"):
        load_model(tiny, "float32")


def test_copies_that_edits_left_are_removed_but_for_the_latest_used(
    tiny: Path, own_cache: Path
) -> None:
    other = write_tiny(tiny.with_name("tiny-2.gguf"), Tiny(kind=Kind.Q4_1))
    for path, dtype in ((other, "bfloat16"), (tiny, "float32")):
        load_model(path, dtype)
    apart = set((own_cache / "converted").iterdir())
    held, copies = [], []
    for seed in range(3):
        write_tiny(tiny, Tiny(kind=Kind.Q4_1, seed=seed))
        os.utime(tiny, (seed, seed))
        held.append(load_model(tiny, "bfloat16"))
        copies.append(converted_path(tiny, "bfloat16"))
        os.utime(copies[-1], (seed, seed))
        if seed == 1:
            write_tiny(tiny, Tiny(kind=Kind.Q4_1, seed=0))
            os.utime(tiny, (0, 0))
            load_model(tiny, "bfloat16")  # the older one is used again

    assert set((own_cache / "converted").iterdir()) - apart == {copies[0], copies[2]}
    assert held[1].tensors["layers.0.qkv"].isfinite().all()


def test_what_a_killed_conversion_left_is_removed_and_a_running_ones_is_not(tiny: Path) -> None:
    copy = converted_path(tiny, "float32")
    copy.parent.mkdir(parents=True)
    left, growing = (copy.with_name(f".{copy.name}.{pid}") for pid in (1, 2))
    left.write_bytes(b"half")
    growing.write_bytes(b"half")
    os.utime(left, (0, 0))

    load_model(tiny, "float32")

    assert set(copy.parent.iterdir()) == {copy, growing}
