"""A check, and its row of the table.

A check says nothing but its detail, and raises when it fails.
"""

import faulthandler
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

CHECK_SECONDS = 180  # a check that takes longer hangs: its process ends
NAME_WIDTH, RESULT_WIDTH = 60, 7


class Note(str):
    """A detail that is neither right nor wrong: for people to judge."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], str]
    alone: bool = True  # it tells times, or starts an engine, for which all of the memory counts


@dataclass(frozen=True)
class Row:
    name: str
    result: str  # "ok", "note", "FAIL" or "not run"
    detail: str

    def __str__(self) -> str:
        return f"{self.name:<{NAME_WIDTH}} | {self.result:<{RESULT_WIDTH}} | {self.detail}"


HEADER = f"{Row('check', 'result', 'detail')}\n{'-' * NAME_WIDTH}-|-{'-' * RESULT_WIDTH}-|-{'-' * 40}"


def run_check(check: Check) -> Row:
    """Whatever the check raises becomes its row; the traceback goes to stderr."""
    started = time.monotonic()
    faulthandler.dump_traceback_later(CHECK_SECONDS, exit=True)
    try:
        detail = check.run()
    except Exception as error:
        traceback.print_exc()
        return Row(check.name, "FAIL", one_line(error))
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds = f" ({time.monotonic() - started:.1f} s)"
    return Row(check.name, "note" if isinstance(detail, Note) else "ok", detail + seconds)


def one_line(error: BaseException) -> str:
    """The first line says what; a message of several lines is cut there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
