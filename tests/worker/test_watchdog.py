"""A step that exceeds its deadline kills the process with all stacks on stderr; a disarmed watchdog does nothing."""

import signal
import subprocess
import sys

import pytest

HEAD = """import ctypes, threading, time
from services.process.progress_page import Progress
from services.worker.watchdog import Watchdog
watchdog = Watchdog(Progress())
"""


def run(script: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", HEAD + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("stuck", ["while True: pass", "threading.Event().wait()", "ctypes.PyDLL(None).sleep(50)"])
def test_a_hanging_process_dies_with_the_stack_of_every_thread(stuck: str) -> None:
    thread = "def other(): threading.Event().wait()\nthreading.Thread(target=other, daemon=True).start()\n"
    ended = run(f"{thread}def step():\n    {stuck}\nwatchdog.watch(50)\nstep()")
    assert ended.returncode == -signal.SIGALRM
    assert "in step" in ended.stderr and "in other" in ended.stderr


@pytest.mark.parametrize("step", ["watchdog.watch(50); watchdog.watch(0)", "watchdog.watch(0)"])
def test_a_disarmed_watchdog_ends_nothing(step: str) -> None:
    ended = run(f"{step}\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass")
    assert ended.returncode == 0 and ended.stderr == ""
