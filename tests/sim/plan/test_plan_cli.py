"""`kilburn plan` from the outside: sentences, tables, JSON, CSV, exit codes, equal bytes."""

import csv
import json
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from sim.plan.cli import plan as command
from sim.plan.result import PlanResult
from tests.conftest import ROOT
from tests.sim.plan.worlds import write_bursts, write_sessions
from traces.schema import MAX_TOKENS


@pytest.fixture
def bursts(tmp_path):
    return str(write_bursts(tmp_path / "bursts.csv"))


@pytest.fixture
def kilburn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command)

    def call(*args: str):
        return CliRunner().invoke(app, [*args])

    return call


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_answer_comes_first_and_files_say_the_same(kilburn, bursts, tmp_path):
    result = kilburn(
        bursts, "--slo", "ttft_p99=1s", "--hardware", "H100,L4", "--seeds", "2", "--json", "x.json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "x.json").read_text())
    (folder,) = (tmp_path / "kilburn-plan").glob("bursts-H100+L4-*")
    assert f"written to kilburn-plan/{folder.name}" in result.output
    assert found == json.loads((folder / "plan.json").read_text())
    text = words(result.output)
    assert text.startswith(words(found["findings"][0]))
    for sentence in [*found["findings"], *found["assumptions"]]:
        assert words(sentence) in text
    rows = list(csv.DictReader((folder / "plan.csv").read_text().splitlines()))
    assert len(rows) == sum(len(candidate["points"]) for candidate in found["candidates"])
    answers = {row["hardware"]: int(row["replicas"]) for row in rows if row["is_answer"] == "True"}
    assert answers == {c["hardware"]: c["replicas"] for c in found["candidates"] if c["feasible"]}
    import msgspec

    assert msgspec.json.decode((tmp_path / "x.json").read_bytes(), type=PlanResult).candidates, (
        "others read it as a Struct"
    )


def test_another_question_has_another_folder_and_shares_the_simulations(kilburn, bursts, tmp_path):
    folders = []
    for slo in ("ttft_p99=1s", "ttft_p99=2s", "ttft_p99=1s"):
        args = ["--slo", slo, "--hardware", "H100", "--quick"]
        assert kilburn(bursts, *args).exit_code == 0
        folders.append(sorted(p.name for p in (tmp_path / "kilburn-plan").iterdir()))
    assert [len(names) for names in folders] == [2, 3, 3], "points, and one for each question"
    assert folders[1] == folders[2]


def test_equal_bytes_whatever_the_hash_seed_and_the_workers(bursts, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import typer; from sim.plan.cli import plan\nif __name__ == '__main__': typer.run(plan)"
    )
    outputs = []
    for seed, workers in (("0", "1"), ("1", "3")):
        out = tmp_path / seed
        flags = ["--slo", "ttft_p99=1s,goodput=99%", "--hardware", "L4,A100-80", "--seeds", "2"]
        flags += ["--no-sensitivity", "--workers", workers, "--out", str(out)]
        subprocess.run(
            [sys.executable, str(program), bursts, *flags],
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        outputs.append(((out / "plan.json").read_bytes(), (out / "plan.csv").read_bytes()))
    assert outputs[0] == outputs[1]


def test_nothing_that_does_it_is_exit_1_with_the_reason(kilburn, bursts):
    result = kilburn(bursts, "--slo", "ttft_p99=1ms", "--hardware", "L4")
    assert result.exit_code == 1
    assert "No number of machines that was looked at keeps ttft_p99=1ms" in words(result.output)
    assert "even with each request alone on an idle 8 x L4" in words(result.output)
    could = re.search(
        r"What could do: limits from ttft_p99=(\d+)ms on, which an idle 8 x L4",
        words(result.output),
    )
    assert could, result.output
    # And that is so: an idle machine keeps it, so a limit that leaves room for load is no dream.
    looser = f"ttft_p99={3 * int(could[1])}ms"
    assert kilburn(bursts, "--slo", looser, "--hardware", "L4", "--quick").exit_code == 0


@pytest.mark.parametrize(
    ("setting", "could"),
    [
        ("tensor_parallel=3", "another degree (--set tensor_parallel=N; without it several"),
        ("kv_gb=0.0001", "a larger pool (--set kv_gb=N, or without it what fits)"),
        ("utilisation=0.01", "fewer bits a weight (--set dtype=fp8 or int4), or devices with more"),
    ],
)
def test_what_could_do_is_of_the_reason_that_was_met(kilburn, bursts, setting, could):
    result = kilburn(bursts, "--slo", "ttft=2s", "--hardware", "L4", "--quick", "--set", setting)
    assert result.exit_code == 1
    [advised] = re.findall(r"What could do: ([^.]*)\.", words(result.output))
    assert advised.startswith(could)
    assert ("fewer bits" in advised) == (setting.startswith("utilisation"))


def test_a_promise_that_covers_nobody_is_said_to(kilburn, tmp_path):
    trace = tmp_path / "ones.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:00,10,1\n2023-11-16 18:15:01,10,1\n"
    )
    result = kilburn(str(trace), "--slo", "tpot=60ms", "--hardware", "L4", "--quick")
    assert result.exit_code == 0
    assert "there tpot_p99 covers no request." in words(result.output)


def test_the_first_lines_are_the_answer_its_cost_and_how_sure(kilburn, bursts):
    for flags, sure in (
        (["--quick"], "alone was simulated, once"),
        (["--seeds", "2", "--no-sensitivity"], "of 2 redraws"),
    ):
        result = kilburn(bursts, "--slo", "ttft_p99=1s", "--hardware", "H100", *flags)
        first, second, third = re.split(r"(?<=\.)\s(?=It costs|How sure)", words(result.output))[:3]
        assert first == "You need 1 x H100 to serve Llama-3.1-8B under the load of bursts.csv."
        assert re.match(
            r"It costs \$3.99 an hour and \$[\d.,]+ per million output tokens \(", second
        )
        assert third.startswith("How sure: ")
        assert sure in third
        assert "ttft_p99: time from a request's arrival to its first token; 99 %" in third


def test_users_are_asked_for_where_sessions_have_no_arrivals(kilburn, tmp_path):
    trace = str(write_sessions(tmp_path / "s.jsonl"))
    args = [trace, "--slo", "ttft_p90=1s", "--hardware", "L4", "--quick"]
    result = kilburn(*args, "--max-users", "4", "--watch-s", "60")
    assert result.exit_code == 0, result.output
    assert "can work at once on 1 x L4" in words(result.output)
    fleet = kilburn(*args, "--arrivals", "every:5")
    assert "to serve Llama-3.1-8B under the load of s.jsonl" in words(fleet.output)
    promised = "Promised: 90 % of requests get their first token within 1 s"
    assert promised in words(fleet.output)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--slo", "nope"], "--slo: 'nope' is no limit; write METRIC_pNN=TIME"),
        (["--slo", "ttft=2s", "--set", "nope=1"], "unknown setting 'nope'"),
        (["--slo", "ttft=2s", "--price", "L4=cheap"], "--price 'L4=cheap': write HARDWARE=DOLLARS"),
        (
            ["--slo", "ttft=2s", "--price", "H100=2"],
            "--price H100=2: 'H100' is not compared here, only L4; give it in --hardware too",
        ),
        (["--slo", "ttft=2s", "--limit", "0"], "--limit: expected a whole number of at least 1"),
        (["--slo", "ttft=2s", "--watch-s", "0.1"], "--watch-s 0.1: from 1 second"),
        (["--slo", "ttft=2s", "--set", "until_s=5"], "until_s has no part in this question"),
        (["--slo", "ttft=2s", "--set", "cost=table:no.csv"], "no.csv cannot be read: No such file"),
        (["--slo", "ttft=2s", "--block-table", __file__], ".py cannot be read: Extra data"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_2(kilburn, bursts, args, message):
    result = kilburn(bursts, "--hardware", "L4", *args)
    assert result.exit_code == 2
    assert message in words(result.stderr)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "the trace has no requests"),
        ("num_prefill_tokens,num_decode_tokens\n5,5\n", "no arrival times; give --arrivals"),
        (
            f"TIMESTAMP,ContextTokens,GeneratedTokens\nx,{MAX_TOKENS},1\n",
            "none of the trace's 1 rows",
        ),
    ],
)
def test_a_trace_that_cannot_be_planned_for_is_one_sentence(kilburn, tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    result = kilburn(str(path), "--slo", "ttft=2s")
    assert result.exit_code == 2
    assert message in words(result.stderr)
