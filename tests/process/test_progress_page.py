"""The progress page: what a process writes is what its launcher reads, and what the process says of itself."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from services.process import progress_page
from services.process.progress_page import Progress, ProgressPage
from tests.e2e.harness import wait_for


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    page = ProgressPage()
    yield page
    page.close()


@pytest.fixture
def progress(page: ProgressPage) -> Progress:
    return Progress(os.dup(page.fd))


def test_the_launcher_reads_what_the_process_writes(page: ProgressPage, progress: Progress) -> None:
    assert page.beats() == (0, 0) and not page.is_busy() and not page.has_worked()
    progress.event_loop.beat()
    progress.thread.beat()
    progress.thread.beat()
    progress.worked()
    progress.busy_for(60)
    assert page.beats() == (1, 2) and page.is_busy() and page.has_worked()
    progress.busy_for(0)
    progress.thread.pause()
    assert page.beats() == (1, 0) and not page.is_busy()
    progress.thread.beat()
    assert page.beats() == (1, 3), "not a number that was there before"


def test_a_page_is_empty_for_the_next_child(page: ProgressPage, progress: Progress) -> None:
    progress.event_loop.beat()
    progress.worked()
    progress.busy_for(60)
    page.clear()
    assert page.beats() == (0, 0) and not page.is_busy() and not page.has_worked()


def test_a_step_is_busy_no_longer_than_it_said(page: ProgressPage, progress: Progress) -> None:
    progress.busy_for(1e-6)
    assert not page.is_busy()


async def test_an_event_loop_beats_while_it_runs(page: ProgressPage, progress: Progress) -> None:
    progress.beat_in_event_loop()
    assert page.beats() == (1, 0)
    await asyncio.to_thread(wait_for, lambda: page.beats()[0] >= 3, "three beats")


def test_a_process_started_alone_knows_whether_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    assert progress.is_alive(), "it has not begun to beat"
    progress.event_loop.beat()
    progress.thread.beat()
    assert progress.is_alive()
    monkeypatch.setattr(progress_page, "LIMIT_SECONDS", 0.0)
    assert not progress.is_alive()
    progress.busy_for(60)
    assert progress.is_alive(), "a step"
    progress.busy_for(0)
    progress.thread.pause()
    assert not progress.is_alive(), "the event loop is stuck"
    progress.event_loop.pause()
    assert progress.is_alive()


def test_a_stuck_event_loop_is_seen_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_page, "LIMIT_SECONDS", 0.6)
    progress, seen = Progress(), threading.Event()

    async def main() -> bool:
        progress.beat_in_event_loop()
        await asyncio.sleep(0)
        watcher = threading.Thread(target=lambda: wait_until_dead(progress, seen))
        watcher.start()
        watcher.join(20)  # blocks the event loop
        return seen.is_set()

    assert asyncio.run(main())


def wait_until_dead(progress: Progress, seen: threading.Event) -> None:
    wait_for(lambda: not progress.is_alive(), "it counts as dead")
    seen.set()
