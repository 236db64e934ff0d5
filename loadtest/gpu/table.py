"""A check and its row of the table. A check returns its detail as text, and raises when it fails."""

import faulthandler
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

CHECK_SECONDS = 180  # a check that takes longer counts as hung: its process ends
NAME_WIDTH, RESULT_WIDTH = 60, 7


class Measured(str):
    """A check's detail with its figures: `data`, JSON values by name."""

    data: dict[str, Any]

    def __new__(cls, text: str, **data: Any) -> Self:
        made = super().__new__(cls, text)
        made.data = data
        return made


class Note(Measured):
    """A check returns this text instead of a str if it needs a reader's judgement: its row says "note", not "ok"."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], str]
    alone: bool = True  # it measures time or uses all of the memory: no other check may run


@dataclass(frozen=True)
class Row:
    name: str
    result: str  # "ok", "note", "FAIL" or "not run"
    detail: str

    def __str__(self) -> str:
        return f"{self.name:<{NAME_WIDTH}} | {self.result:<{RESULT_WIDTH}} | {self.detail}"


HEADER = f"{Row('check', 'result', 'detail')}\n{'-' * NAME_WIDTH}-|-{'-' * RESULT_WIDTH}-|-{'-' * 40}"


def run_check(check: Check) -> Row:
    """Runs the check and returns its row. An exception becomes a FAIL row, its traceback goes to stderr. If the check
    takes longer than CHECK_SECONDS, the process exits with status 1."""
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
    """Returns the error's type and the first nonempty line of its message, at most 200 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
