"""Where results are to go is looked at before the work."""

from pathlib import Path

import pytest

from engine.core.errors import ConfigError
from traces.outputs import check_outputs


def test_what_can_be_written_passes_and_is_not_made(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("old")
    check_outputs(None, tmp_path / "new.html", there, folder=tmp_path / "a" / "b")
    check_outputs(folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.json"]
    assert there.read_text() == "old"


def test_what_cannot_is_told_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"no folder .*absent; make it first"):
        check_outputs(tmp_path / "absent" / "run.html")
    with pytest.raises(ConfigError, match="it is a folder; name a file in it"):
        check_outputs(tmp_path)
    with pytest.raises(ConfigError, match=r"no folder .*file; make it first"):
        check_outputs(file / "run.html")
    with pytest.raises(ConfigError, match="it is a file; name a folder"):
        check_outputs(folder=file)
    with pytest.raises(ConfigError, match="no folder"):
        check_outputs(folder=file / "below")
