"""Starts child processes (child.py) and supervises them while something happens to them."""

import threading
from collections.abc import Callable
from pathlib import Path

from services.process.child_processes import ChildProcesses
from tests.e2e.harness import wait_for
from tests.process.child import MODULE


def start(children: ChildProcesses, mode: str, argument: object = "", kind: str = "child") -> str:
    return children.start_module(kind, [MODULE, mode, *([str(argument)] if argument != "" else [])], {}, [])


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()]


def wait_for_pids(file: Path, count: int) -> list[int]:
    pids: list[int] = wait_for(lambda: len(found := pids_in(file)) >= count and found, f"{count} children")
    return pids


def supervise(children: ChildProcesses, act: Callable[[], None]) -> None:
    """Supervises in this thread until `act`, in another one, has returned. Raises what `act` raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
        children.stop()

    thread = threading.Thread(target=run)
    try:
        thread.start()
        assert children.supervise(lambda: True)
    finally:
        thread.join()
    if failures:
        raise failures[0]
