"""A spare process: what it is told, whose process it becomes, and when it cannot."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Fatal
from services.machine.listen import listen
from services.options.common import ListenOptions
from services.process.child import Child
from services.process.progress_page import Progress
from services.process.spare import RUNNING_NAME, WAITING_NAME, Place, Spare, take_over, take_over_in_thread
from tests.e2e.harness import name_of, wait_for
from tests.process.child import MODULE


def place_at(front: socket.socket) -> Place:
    return Place("role", {"listen": "unix:/there"}, front.fileno())


def new_child(name: str, *arguments: str) -> Child:
    return Child(name, [sys.executable, "-m", MODULE, *arguments], dict(os.environ), [])


@pytest.fixture
def child() -> Iterator[Child]:
    """One that has ended."""
    child = new_child("role", "exit", "3")
    child.spawn()
    child.process.wait(20)
    child.restart_at = 0.0
    yield child
    child.process.kill()
    child.process.wait()


@pytest.fixture
def front() -> Iterator[socket.socket]:
    with listen(None, 0) as front:
        yield front


@pytest.fixture(params=["spare", "spare-thread"])
def spare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spare]:
    """One that has loaded everything, with an event loop or without."""
    spare = Spare(new_child("spare role", request.param, str(tmp_path / "place")))
    spare.start()
    wait_for(lambda: any(spare.child.page.beats()), "it beats")
    yield spare
    spare.close()
    spare.child.process.kill()
    spare.child.process.wait()


def test_a_spare_becomes_the_child_at_its_place(
    spare: Spare, child: Child, front: socket.socket, tmp_path: Path
) -> None:
    pid = spare.child.process.pid
    wait_for(lambda: name_of(pid) == WAITING_NAME, "it waits")
    assert spare.become(child, place_at(front))
    assert child.process.pid == pid and child.restart_at is None and spare.child.restart_at is not None
    file, text = tmp_path / "place", f"unix:/there {front.getsockname()[1]}"
    wait_for(lambda: file.exists() and file.read_text() == text, "it has taken the place")
    assert name_of(pid) == RUNNING_NAME
    before = child.page.beats()
    wait_for(lambda: child.page.beats() != before, "its progress is the child's")


def test_after_that_another_process_can_be_the_spare(spare: Spare, child: Child, front: socket.socket) -> None:
    place = place_at(front)
    assert spare.become(child, place)
    assert not spare.become(child, place), "there is none"
    first = child.process
    spare.start()
    wait_for(lambda: any(spare.child.page.beats()), "it beats")
    assert spare.become(child, place) and child.process is not first
    first.kill()
    first.wait()


def test_a_spare_that_has_not_started_or_loaded_is_none(child: Child, front: socket.socket) -> None:
    place = place_at(front)
    spare = Spare(new_child("spare role", "spare"))
    assert not spare.become(child, place)
    spare.start()
    assert not spare.become(child, place)
    spare.child.process.kill()
    spare.child.process.wait()
    spare.close()


def test_a_spare_that_is_stopped_is_none(spare: Spare, child: Child, front: socket.socket) -> None:
    spare.child.watch.look(0.1, is_stopped=True)
    assert not spare.become(child, place_at(front))
    spare.child.watch.look(0.1, is_stopped=False)
    assert spare.become(child, place_at(front))


def test_a_spare_that_has_ended_is_none(spare: Spare, child: Child, front: socket.socket) -> None:
    """Even if the launcher has not noticed it yet."""
    os.kill(spare.child.process.pid, signal.SIGKILL)
    spare.child.process.wait()
    assert not spare.become(child, place_at(front))


async def test_a_process_that_is_no_spare_goes_on_at_once() -> None:
    options = ListenOptions(listen="unix:/here")
    assert await take_over(options) is options


def test_a_process_without_an_event_loop_that_is_no_spare_goes_on_at_once() -> None:
    options = ListenOptions(listen="unix:/here")
    assert take_over_in_thread(options, Progress()) is options


async def test_a_spare_ends_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.process.spare.name_process", lambda name: None)  # of the process of this test
    own, end = socket.socketpair()
    own.close()
    with pytest.raises(Fatal, match="needs this spare process no more"):
        await take_over(ListenOptions(spare_fd=end.dup().detach()))
    with pytest.raises(Fatal, match="needs this spare process no more"):
        take_over_in_thread(ListenOptions(spare_fd=end.detach()), Progress())
