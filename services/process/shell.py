"""What every process does around its work: sets up logs, exits with its parent, stops on SIGTERM or SIGINT.

A process that cannot go on prints one line and exits with status 1. Knows nothing of the roles.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from services.errors import Fatal
from services.machine import allow_open_files
from services.options.common import ProcessOptions
from services.process.progress_page import Progress
from services.process.progress_watch import end_if_hung
from services.telemetry.logs import fail, set_up_logging

HAND_OVER = signal.SIGQUIT  # ends a role at once and in order: its requests resume elsewhere
AT_ONCE = "at once"


def begin(role: str, options: ProcessOptions) -> Progress:
    """Raises the limit of open files, sets up logging, exits with the parent if there is a --parent-death-fd, and when
    it hangs if there is no launcher that would notice. Returns the process's progress page.

    Every role calls this first.
    """
    allow_open_files()  # without a free descriptor a connection cannot be accepted and gets no answer
    set_up_logging(role, options.log_level, options.log_format)
    if options.parent_death_fd is not None:
        exit_with_parent(options.parent_death_fd)
    progress = Progress(options.progress_fd)
    if options.progress_fd is None:
        end_if_hung(progress)
    return progress


def exit_with_parent(fd: int) -> None:
    """Starts a thread that ends this process, with status 1, when the parent-death pipe closes. `fd` is its read end.

    The parent holds the only write end, so the pipe closes when the parent dies, even by SIGKILL.
    """

    def wait(fd: int) -> None:
        while os.read(fd, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, args=(fd,), name="parent-death", daemon=True).start()


def run_until_stopped(
    role: str, main: Callable[[], Coroutine[Any, Any, None]], expected: tuple[type[Exception], ...]
) -> int:
    """Runs `main` until it returns, or SIGTERM or SIGINT cancels it. HAND_OVER cancels it with the message AT_ONCE.
    Returns the exit status.

    The status is 0, or 1 after Fatal or an error of a type in `expected`, reported in one line. Others are raised.
    """

    async def until_signal() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(main())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        loop.add_signal_handler(HAND_OVER, task.cancel, AT_ONCE)
        try:
            await task
        except asyncio.CancelledError:
            logging.getLogger(__name__).info("stopped")

    try:
        uvloop.run(until_signal())
    except expected as error:
        return fail(role, error)
    except Fatal as error:
        return fail(role, error)
    return 0


def on_hang_up(handler: Callable[[], None]) -> None:
    """Calls `handler` in the running event loop at SIGHUP, also at one that came before: the launcher starts its
    children with SIGHUP blocked."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


async def to_the_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Runs `cleanup` to its end and raises its error. A cancellation of this task meanwhile is ignored, so that a
    signal does not interrupt a shutdown."""
    task = asyncio.create_task(cleanup)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()
