"""The shell of every process: logs, lifeline, signals, and one clear line when it cannot go on."""

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
from services.options.declarations import ProcessOptions
from services.telemetry.logs import report_failure, set_up_logging


def begin(role: str, options: ProcessOptions) -> None:
    """The first thing that a role does."""
    allow_open_files()  # a connection that cannot be accepted gets no answer at all
    set_up_logging(role, options.log_level, options.log_format)
    if options.lifeline_fd is not None:
        hold_lifeline(options.lifeline_fd)


def hold_lifeline(fd: int) -> None:
    """Ends this process when the other end of `fd` is closed: whoever started it has died, however hard."""

    def wait(fd: int) -> None:
        while os.read(fd, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, args=(fd,), name="lifeline", daemon=True).start()


def fail(role: str, error: BaseException) -> int:
    """Tells the one line, returns the exit status."""
    report_failure(role, " ".join(str(error).split()))
    return 1


def run_until_stopped(
    role: str, main: Callable[[], Coroutine[Any, Any, None]], expected: tuple[type[Exception], ...]
) -> int:
    """Runs an asyncio process until it ends, or SIGTERM or SIGINT cancels it. Returns the exit status."""

    async def until_signal() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(main())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
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


async def to_the_end(cleaning: Coroutine[Any, Any, None]) -> None:
    """Runs it whole, though a signal cancels this task meanwhile: a process that already ends must not be cut short."""
    task = asyncio.create_task(cleaning)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()
