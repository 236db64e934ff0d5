"""Age, CPU time and stopped state of processes, and the limit of open files: on Linux and elsewhere."""

import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.machine import allow_open_files, cpu_seconds, files, process_age, stopped_children
from tests.e2e.harness import wait_for


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.fixture(params=["waitid", "ps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ps":
        if shutil.which("ps") is None:
            pytest.skip("ps is not installed")
        monkeypatch.delattr(os, "waitid")
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_child_is_stopped_until_it_continues(child: "subprocess.Popen[bytes]") -> None:
    assert stopped_children([child.pid]) == set()
    for _ in range(2):
        child.send_signal(signal.SIGSTOP)
        wait_for(lambda: stopped_children([child.pid]) == {child.pid}, "stopped")
        assert stopped_children([child.pid]) == {child.pid}, "a look changes nothing"
        child.send_signal(signal.SIGCONT)
        wait_for(lambda: stopped_children([child.pid]) == set(), "it goes on")


@pytest.mark.usefixtures("way")
def test_a_child_that_ended_is_not_stopped_and_keeps_its_status(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) if hasattr(os, "waitid") else None
    assert stopped_children([child.pid]) == set()
    assert child.wait() == -signal.SIGKILL
    assert stopped_children([child.pid]) == set()


ORPHANS = """import ctypes, subprocess, sys, time
from services.machine import reap_orphans
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: as the first process of a container
own = subprocess.Popen(["sleep", "60"])
orphans = [int(subprocess.check_output(["sh", "-c", "sleep 60 >&2 & echo $!"])) for _ in range(3)]
print(own.pid, *orphans, flush=True)
for line in sys.stdin:
    reap_orphans([own.pid])
    print("looked", flush=True)
print(own.wait())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a container's")
def test_inherited_processes_are_reaped_and_own_ones_keep_their_status() -> None:
    argv = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None and started.stdout is not None
        own, *orphans = map(int, started.stdout.readline().split())

        def look() -> bool:
            assert started.stdin is not None and started.stdout is not None
            started.stdin.write("\n")
            started.stdin.flush()
            return started.stdout.readline() == "looked\n"

        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: look() and not any((files.PROC / str(pid)).exists() for pid in orphans), "they are reaped")
        os.kill(own, signal.SIGKILL)
        assert look()
        assert started.communicate()[0] == f"{-signal.SIGKILL}\n"


def test_without_ps_none_is_stopped(child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: stopped_children([child.pid]) == {child.pid}, "stopped")
    monkeypatch.delattr(os, "waitid")
    monkeypatch.setenv("PATH", "")
    assert stopped_children([child.pid]) == set()


def test_the_age_and_the_cpu_time_of_this_process() -> None:
    age, busy = process_age(), cpu_seconds(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    assert process_age() - age >= 0.04 and cpu_seconds(os.getpid()) - busy >= 0.04


def test_age_and_cpu_time_of_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "PROC", tmp_path)
    assert process_age() == 0.0
    assert math.isnan(cpu_seconds(os.getpid()))


@pytest.mark.parametrize(
    ("soft", "hard", "most", "granted"),
    [(256, 4096, 4096, 4096), (256, 2**62, 10240, 10240), (20000, 2**62, 10240, 20000)],
    ids=["linux", "macos", "macos, no lower than before"],
)
def test_the_limit_of_open_files_is_raised_to_what_the_system_grants(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, granted: int
) -> None:
    limits = [soft, hard]

    def grant(kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", grant)
    allow_open_files()
    assert limits == [granted, hard]
