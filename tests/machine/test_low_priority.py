"""Work at a low priority: the niceness of its thread and of the session, and systems that refuse it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from services.machine import files
from services.machine.low_priority import NICENESS, at_low_priority

IN_A_SESSION = """
from pathlib import Path
from services.machine.low_priority import at_low_priority
read = lambda: Path("/proc/self/autogroup").read_text().split()[-1]
print(read(), at_low_priority(read), read())
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="a niceness is a thread's on Linux only")


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@needs_linux
def test_the_work_has_a_low_priority_and_its_caller_keeps_its_own() -> None:
    before = own_niceness()
    assert at_low_priority(own_niceness) == max(before, NICENESS)
    assert own_niceness() == before


def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)


@needs_linux
def test_a_session_of_its_own_has_a_low_priority_meanwhile() -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not group by session")
    printed = subprocess.run(
        [sys.executable, "-c", IN_A_SESSION], capture_output=True, text=True, check=True, start_new_session=True
    ).stdout
    assert printed.split() == ["0", str(NICENESS), "0"]


@needs_linux
def test_a_session_that_others_share_keeps_its_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = with_autogroup(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getppid())
    assert at_low_priority(written.read_text) == ""


@needs_linux
@pytest.mark.parametrize("refused", ["open", "write", "setpriority"])
def test_work_runs_if_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError

    with_autogroup(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    monkeypatch.setattr(os, refused, refuse)
    assert at_low_priority(lambda: 7) == 7


@needs_linux
def test_a_change_that_the_kernel_puts_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = with_autogroup(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    really_write, events = os.write, list[bytes | str]()

    def write(fd: int, data: bytes) -> int:
        events.append(data)
        if events[-2:-1] != ["waited"]:
            raise BlockingIOError
        return really_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(time, "sleep", lambda seconds: events.append("waited"))
    assert at_low_priority(written.read_text) == str(NICENESS)
    assert events == [b"10", "waited", b"10", b"0", "waited", b"0"]


def with_autogroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file that stands for the session's autogroup; it is empty."""
    monkeypatch.setattr(files, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    path = tmp_path / "self/autogroup"
    path.touch()
    return path
