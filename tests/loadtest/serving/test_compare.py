"""`python -m loadtest.serving.compare` as a real process, with servers that are played, and with two of ours."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.serving.command import UsageError
from loadtest.serving.compare import parse
from tests.e2e.harness import TANDEM, alive, wait_for

SECONDS = 240.0  # a deadline for a busy machine, not an expectation
COMPARE = [sys.executable, "-m", "loadtest.serving.compare"]


class Journal:
    """What the played servers wrote down: (name, word, more)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"

    def server(self, name: str, *flags: str) -> str:
        module = [sys.executable, "-m", "tests.loadtest.serving.played_server"]
        return (
            f"--server={name}="
            + shlex.join([*module, f"--name={name}", f"--journal={self._path}", *flags, "--port"])
            + (" {port}")
        )

    def lines(self) -> list[tuple[str, str, str]]:
        if not self._path.exists():
            return []
        split = [line.split(" ", 2) for line in self._path.read_text().splitlines()]
        return [(one[0], one[1], " ".join(one[2:])) for one in split]

    def prompts(self) -> list[list[str]]:
        """Those of each start, sorted."""
        found: list[list[str]] = []
        for _, word, more in self.lines():
            if word == "start":
                found.append([])
            if word == "prompt":
                found[-1].append(more)
        return [sorted(prompts) for prompts in found]

    def pids(self) -> list[int]:
        return [int(pid) for _, word, more in self.lines() if word == "start" for pid in more.split()]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def compare(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMPARE, f"--output-dir={folder / 'out'}", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def saved(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "comparison.json").read_text())
    return found


def test_servers_take_turns_and_get_the_same_prompts(tmp_path: Path, journal: Journal) -> None:
    servers = (journal.server("a"), journal.server("b"))
    done = compare(tmp_path, *servers, "--rounds=2", "--workloads=c1,prefix")
    assert done.returncode == 0, done.stderr
    turns = [(name, word) for name, word, _ in journal.lines() if word != "prompt"]
    assert turns == [(name, word) for name in "abab" for word in ("start", "end")]
    prompts = journal.prompts()
    assert [len(one) for one in prompts] == [8 + 4 + 32] * 4  # the warm-up's among them
    assert prompts[0] == prompts[1] and prompts[2] == prompts[3]
    assert not set(prompts[0]) & set(prompts[2])
    rows = [(row["round"], row["server"], row["workload"]) for row in saved(tmp_path)["rows"]]
    assert rows == [(turn, name, case) for turn in (1, 2) for name in "ab" for case in ("c1", "prefix")]
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_wrong_lengths_are_marked(tmp_path: Path, journal: Journal) -> None:
    done = compare(tmp_path, journal.server("a"), journal.server("b", "--short=1"), "--rounds=1", "--workloads=c1")
    assert done.returncode == 1
    why = "4 answers do not have the requested length"
    assert [row["faults"] for row in saved(tmp_path)["rows"]] == [[], [why]]
    assert f"- round 1, b, c1: {why}\n" in done.stdout
    assert (tmp_path / "out" / "comparison.md").read_text() == done.stdout


@pytest.mark.parametrize(
    ("flags", "timeout", "line"),
    [
        (("--sick", "--orphan"), "1", "b is not healthy after 1 s; its last line: the last line of its log"),
        (("--no-such-flag",), "60", "b ended with status 2 before it was healthy; its last line: "),
        (("--die-at=3",), "60", "b: the warm-up failed: "),
    ],
    ids=["sick", "gone", "warm-up"],
)
def test_a_server_that_cannot_begin_is_one_line(
    tmp_path: Path, journal: Journal, flags: tuple[str, ...], timeout: str, line: str
) -> None:
    """What came before it is kept."""
    servers = (journal.server("a"), journal.server("b", *flags))
    done = compare(tmp_path, *servers, "--workloads=c1", f"--start-timeout={timeout}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"loadtest.serving.compare: error: {line}")
    assert [row["server"] for row in saved(tmp_path)["rows"]] == ["a"]
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_a_server_that_dies_midway_is_marked(tmp_path: Path, journal: Journal) -> None:
    servers = (journal.server("a", "--orphan", f"--die-at={8 + 4 + 2}"), journal.server("b"))
    done = compare(tmp_path, *servers, "--workloads=c1,c8,c32", "--rounds=1")
    assert done.returncode == 1
    rows = saved(tmp_path)["rows"]
    assert [bool(row["faults"]) for row in rows] == [False, True, True, False, False, False]
    assert rows[2]["faults"][-1] == "the server ended by signal SIGKILL"
    assert rows[2]["failed"] == 32
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_sigterm_ends_it_and_its_server(tmp_path: Path, journal: Journal) -> None:
    command = [*COMPARE, f"--output-dir={tmp_path}", journal.server("a", "--sick", "--orphan")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(journal.pids, "the server's start", 60)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "", "loadtest.serving.compare: stopped before the end\n")
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_two_of_ours(tmp_path: Path) -> None:
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
    assert "stopped" in (tmp_path / "out" / "all.log").read_text()  # it was asked, not killed


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
def test_what_is_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(flags)
    assert message in str(caught.value)


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = compare(tmp_path, "--server=a=/no/such/command {port}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "a cannot be started: " in done.stderr
