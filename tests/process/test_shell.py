"""What a signal ends, what it must not interrupt, and how a process exits with its parent."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from services.errors import Fatal
from services.process.shell import run_until_stopped, to_the_end


def test_a_signal_cancels_main_and_runs_its_cleanup() -> None:
    events: list[str] = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            events.append("cleaned")

    assert run_until_stopped("engine", main, ()) == 0
    assert events == ["cleaned"]


def test_a_signal_does_not_interrupt_a_cleanup(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that fails exits by itself, and the launcher sends SIGTERM to all at the same time."""
    events: list[str] = []

    async def clean() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):
            await asyncio.to_thread(os.getpid)
        events.append("cleaned")

    async def main() -> None:
        try:
            raise Fatal("the model is another one")
        finally:
            await to_the_end(clean())

    assert run_until_stopped("engine", main, ()) == 1
    assert events == ["cleaned"]
    assert capsys.readouterr().err == "tandem engine: error: the model is another one\n"


def test_a_process_exits_at_the_end_of_file_of_the_parent_death_pipe() -> None:
    code = "import sys, threading; from services.process.shell import exit_with_parent; "
    code += "exit_with_parent(int(sys.argv[1])); print('ready', flush=True); threading.Event().wait()"
    reader, writer = os.pipe()
    argv = [sys.executable, "-c", code, str(reader)]
    with subprocess.Popen(argv, pass_fds=[reader], stdout=subprocess.PIPE, text=True) as process:
        os.close(reader)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert process.poll() is None
        os.close(writer)
        assert process.wait(20) == 1


def test_an_error_in_a_cleanup_is_raised() -> None:
    async def clean() -> None:
        raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        asyncio.run(to_the_end(clean()))


HANG_UPS = """import asyncio, os, signal
from services.process.shell import on_hang_up, run_until_stopped

async def main():
    os.kill(os.getpid(), signal.SIGHUP)
    handled = asyncio.Event()
    on_hang_up(handled.set)
    await asyncio.wait_for(handled.wait(), 20)
    handled.clear()
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(handled.wait(), 20)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
raise SystemExit(run_until_stopped("shim", main, ()))
"""


def test_a_hang_up_that_came_before_its_handler_is_handled() -> None:
    """The launcher starts its children with the signal blocked: it does not end one that is still starting."""
    assert subprocess.run([sys.executable, "-c", HANG_UPS], timeout=60, check=False).returncode == 0
