"""Servers as child processes: start, health, death, and the end of all their descendants."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import alive, wait_for
from tests.loadtest.serving.compare_process import COMPARE, Journal, compare, saved


@pytest.mark.parametrize(
    ("flags", "timeout", "line"),
    [
        (("--sick", "--orphan"), "1", "b is not healthy after 1 s; its last line: the last line of its log"),
        (("--no-such-flag",), "60", "b ended with status 2 before it was healthy; its last line: "),
        (("--die-at=3",), "60", "b: the warm-up failed: "),
    ],
    ids=["sick", "gone", "warm-up"],
)
def test_a_server_that_does_not_start_fails_with_one_line(
    tmp_path: Path, journal: Journal, flags: tuple[str, ...], timeout: str, line: str
) -> None:
    """The finished runs are saved."""
    servers = (journal.server("a"), journal.server("b", *flags))
    done = compare(tmp_path, *servers, "--workloads=c1", f"--start-timeout={timeout}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"loadtest.serving.compare: error: {line}")
    assert [row["server"] for row in saved(tmp_path)["rows"]] == ["a"]
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_a_server_that_dies_during_a_run_makes_it_invalid(tmp_path: Path, journal: Journal) -> None:
    servers = (journal.server("a", "--orphan", f"--die-at={8 + 4 + 2}"), journal.server("b"))
    done = compare(tmp_path, *servers, "--workloads=c1,c8,c32", "--rounds=1")
    assert done.returncode == 1
    rows = saved(tmp_path)["rows"]
    assert [bool(row["faults"]) for row in rows] == [False, True, True, False, False, False]
    assert rows[2]["faults"][-1] == "the server ended by signal SIGKILL"
    assert rows[2]["failed"] == 32
    assert [pid for pid in journal.pids() if alive(pid)] == []


def test_sigterm_ends_the_comparison_and_its_server(tmp_path: Path, journal: Journal) -> None:
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


def test_a_missing_command_fails_with_one_line(tmp_path: Path) -> None:
    done = compare(tmp_path, "--server=a=/no/such/command {port}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "a cannot be started: " in done.stderr
