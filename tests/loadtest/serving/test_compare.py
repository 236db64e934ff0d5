"""`python -m loadtest.serving.compare` as a process: order, prompts, files, and refused command lines."""

import shlex
from pathlib import Path

import pytest

from loadtest.serving.command import UsageError
from loadtest.serving.compare import parse
from tests.e2e.harness import TANDEM, alive
from tests.loadtest.serving.compare_process import Journal, compare, saved


def test_servers_take_turns_and_get_the_same_prompts(tmp_path: Path, journal: Journal) -> None:
    servers = (journal.server("a"), journal.server("b"))
    done = compare(tmp_path, *servers, "--rounds=2", "--workloads=c1,prefix")
    assert done.returncode == 0, done.stderr
    events = [(name, word) for name, word, _ in journal.lines() if word != "prompt"]
    assert events == [(name, word) for name in "abab" for word in ("start", "end")]
    prompts = journal.prompts()
    assert [len(one) for one in prompts] == [8 + 4 + 32] * 4  # with the warm-up's
    assert prompts[0] == prompts[1] and prompts[2] == prompts[3]
    assert not set(prompts[0]) & set(prompts[2])
    rows = [(row["round"], row["server"], row["workload"]) for row in saved(tmp_path)["rows"]]
    assert rows == [(number, name, case) for number in (1, 2) for name in "ab" for case in ("c1", "prefix")]
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_wrong_lengths_are_marked(tmp_path: Path, journal: Journal) -> None:
    done = compare(tmp_path, journal.server("a"), journal.server("b", "--short=1"), "--rounds=1", "--workloads=c1")
    assert done.returncode == 1
    reason = "4 answers do not have the requested length"
    assert [row["faults"] for row in saved(tmp_path)["rows"]] == [[], [reason]]
    assert f"- round 1, b, c1: {reason}\n" in done.stdout
    assert (tmp_path / "out" / "comparison.md").read_text() == done.stdout


@pytest.mark.long
def test_two_tandem_servers(tmp_path: Path) -> None:
    tandem = shlex.join([*TANDEM, "serve", "--dtype=float32", "--port"]) + " {port}"
    servers = (f"--server=all={tandem}", f"--server=one={tandem} --max-num-seqs=1")
    done = compare(tmp_path, *servers, "--workloads=c1", "--rounds=1")
    assert done.returncode == 0, done.stderr
    found = saved(tmp_path)
    assert found["servers"] == {"all": tandem, "one": f"{tandem} --max-num-seqs=1"}
    assert found["machine"]["cores"] >= 1
    for row in found["rows"]:
        assert (row["completed"], row["total_input_tokens"], row["total_output_tokens"]) == (4, 4 * 256, 4 * 64)
        assert 0 <= row["foreign_cpu"] <= 1.5
        assert row["output_throughput"] > 0
    assert f"- all: `{tandem}`\n" in done.stdout
    assert "| c1 | one | " in done.stdout
    assert "</svg>" in (tmp_path / "out" / "comparison.svg").read_text()
    assert "stopped" in (tmp_path / "out" / "all.log").read_text()  # it got SIGTERM, not SIGKILL


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "the following arguments are required: --server"),
        (("--server=a=run --port 8000",), "argument --server: 'a=run --port 8000' is not LABEL=COMMAND with {port} in"),
        (("--server=run {port}",), "argument --server: 'run {port}' is not LABEL=COMMAND with {port} in the command"),
        (("--server=a=x {port}", "--server=a=y {port}"), "--server: two servers have the same label"),
        (
            ("--server=a='x {port}",),
            'argument --server: "a=\'x {port}" is not LABEL=COMMAND with {port} in the command',
        ),
        (("--server=a=x {port}", "--rounds=0"), "argument --rounds: 0 must be at least 1"),
        (("--server=a=x {port}", "--workloads=c1,c2"), "argument --workloads: 'c2' is not one of c1, c8, c32"),
        (("--server=a=x {port}", "--start-timeout=0"), "argument --start-timeout: 0 must be more than 0"),
    ],
)
def test_wrong_command_lines_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(flags)
    assert message in str(caught.value)
