"""The command line as a whole: what it says of itself, and that it stands being cut off."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kilburn
from kilburn import app
from tests.conftest import ROOT

SAMPLE = Path(__file__).parent / "data" / "azure_sample.csv"


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"kilburn {version('kilburn')}\n")


@pytest.mark.parametrize("command", [[], ["serve"], ["replay"], ["trace"], ["trace", "stats"]])
def test_help_has_its_short_name_everywhere(command: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*command, flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)


@pytest.mark.parametrize("command", ["replay", "sweep", "plan"])
def test_help_names_every_model_and_hardware(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    for table in ("models.toml", "hardware.toml"):
        for name in tomllib.loads((ROOT / "sim" / table).read_text()):
            assert name in told


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "kilburn", "replay", str(SAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_what_no_command_foresees_is_exit_3_with_its_traceback(monkeypatch, capsys) -> None:
    def fails() -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(kilburn, "app", fails)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(SystemExit) as left:
        kilburn.main()
    assert left.value.code == 3, "1 is an answer of several commands"
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("ZeroDivisionError: unforeseen\n")
