"""One of a thing is said in the singular, by every command, of a trace of one request."""

import json
import re

import pytest
from typer.testing import CliRunner

from kilburn import app
from traces.report import numbers

NOUNS = (
    "requests|sequences|rows|answers|points|replicas|devices|users|sessions|turns|blocks|tokens|steps|calls|decisions|clients|simulations|windows|"
    "redraws|prompts|bins|times|preemptions|frames|bad rows|finished requests"
)
WRONG = re.compile(rf"(?<![\d.,/])1[ \u00a0]({NOUNS})\b(?!/)")
HEADER = '{"format":"kilburn-trace","version":1}\n'
ROW = '{"arrival_ns":0,"num_prompt":1,"num_output":1}\n'


@pytest.fixture
def said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(HEADER + ROW)
    (tmp_path / "bad.jsonl").write_text(HEADER + ROW + "x\n")

    def run(*args: str) -> str:
        result = CliRunner().invoke(app, list(args), env={"COLUMNS": "300"})
        assert result.exit_code in (0, 1), result.output
        pages = "".join(re.sub(r"<[^>]+>", "", p.read_text()) for p in tmp_path.rglob("*.html"))
        found = [json.loads(p.read_text()).get("findings", []) for p in tmp_path.glob("*.json")]
        return f"{result.output}\n{pages}\n{json.dumps(found)}"

    return run


@pytest.mark.parametrize(
    "args",
    [
        ("replay", "t.jsonl", "--html", "p.html"),
        ("replay", "bad.jsonl", "--html", "p.html"),
        ("trace", "stats", "bad.jsonl"),
        ("trace", "convert", "t.jsonl", "o.jsonl"),
        ("sweep", "t.jsonl", "--axis", "block_size=16", "--workers", "1"),
        ("plan", "bad.jsonl", "--slo", "ttft=9s", "--quick", "--workers", "1", "--html", "p.html"),
    ],
    ids=lambda args: " ".join(args[:3]),
)
def test_one_is_said_in_the_singular(said, args):
    text = said(*args)
    assert re.search(r"\b1[ \u00a0](request|point|row|of)\b", text), "the text counts something"
    assert WRONG.findall(text) == [], [
        text[max(0, m.start() - 60) : m.end() + 40] for m in WRONG.finditer(text)
    ]


def test_recordings_too(said):
    said("replay", "t.jsonl", "--record", "r.jsonl")
    for args in (("inspect", "r.jsonl", "--html", "i.html"), ("replay", "r.jsonl", "--lockstep")):
        assert WRONG.findall(said(*args)) == []


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (1200, "1,200 rows")])
def test_a_count_and_its_noun(number, text):
    assert numbers.counted(number, "row") == text
    assert numbers.counted(1, "match", "matches") == "1 match"
    assert numbers.counted(2, "match", "matches") == "2 matches"
