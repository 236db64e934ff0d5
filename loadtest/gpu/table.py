"""A check and its row of the table. A check returns its detail as text, and raises when it fails."""

import faulthandler
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

CHECK_SECONDS = 180.0  # a check that takes longer counts as hung: its process ends
CALL_SECONDS = {"A": 180.0, "B": 300.0, "C": 240.0, "D": 240.0, "all": 540.0}  # time limits of the calls (calls.py)
NAME_WIDTH, RESULT_WIDTH = 60, 7


class Measured(str):
    """The detail of a row, with `data`: the same figures and more, as JSON values by name."""

    data: dict[str, Any]

    def __new__(cls, text: str, /, **data: Any) -> Self:
        measured = super().__new__(cls, text)
        measured.data = data
        return measured


class Note(Measured):
    """A check returns this text instead of another if it needs a reader's judgement: its row says "note", not "ok"."""


class NotRun(Exception):
    """A check raises this if it cannot run here. Its row says "not run", with the message as the detail."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], str]
    alone: bool = True  # it measures time or uses all of the memory: no other check may run
    seconds: float = CHECK_SECONDS


@dataclass(frozen=True)
class Row:
    name: str
    result: str  # "ok", "note", "FAIL" or "not run"
    detail: str
    seconds: float = 0.0  # that the check took; 0: it did not end
    data: dict[str, Any] = field(default_factory=dict)  # JSON values

    def __str__(self) -> str:
        return self.line()

    def line(self, width: int | None = None) -> str:
        """Returns the row of the table, with at most `width` characters of the detail; None: with all of them."""
        detail = self.detail if width is None or len(self.detail) <= width else f"{self.detail[: width - 3]}..."
        if self.seconds:
            detail = f"{detail} ({self.seconds:.1f} s)".lstrip()
        return f"{self.name:<{NAME_WIDTH}} | {self.result:<{RESULT_WIDTH}} | {detail}"


HEADER = f"{Row('check', 'result', 'detail')}\n{'-' * NAME_WIDTH}-|-{'-' * RESULT_WIDTH}-|-{'-' * 40}"


def run_check(check: Check) -> Row:
    """Runs the check and returns its row. An exception becomes a FAIL row, its traceback goes to stderr; NotRun becomes
    a "not run" row. If the check takes longer than its `seconds`, the process exits with status 1."""
    started = time.monotonic()
    faulthandler.dump_traceback_later(check.seconds, exit=True)
    try:
        detail = check.run()
    except NotRun as reason:
        return Row(check.name, "not run", str(reason))
    except Exception as error:
        traceback.print_exc()
        return Row(check.name, "FAIL", one_line(error), time.monotonic() - started)
    finally:
        faulthandler.cancel_dump_traceback_later()
    data = detail.data if isinstance(detail, Measured) else {}
    return Row(check.name, "note" if isinstance(detail, Note) else "ok", str(detail), time.monotonic() - started, data)


def one_line(error: BaseException) -> str:
    """Returns the error's type and the first nonempty line of its message, at most 200 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
