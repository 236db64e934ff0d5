"""A check, its row of the table, and how rows travel from the process that runs the checks to the one that prints them.

A check says nothing but its detail, and raises when it fails.
"""

import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass

CHECK_SECONDS = 300  # a check that takes longer hangs: its process ends
MARK = "\x1e"  # begins the lines on stdout that are messages; libraries print there too
NAME_WIDTH, RESULT_WIDTH = 60, 7


class Note(str):
    """A detail that is neither right nor wrong: for people to judge."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], str]


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
    try:
        detail = check.run()
    except Exception as error:
        traceback.print_exc()
        return Row(check.name, "FAIL", one_line(error))
    seconds = f" ({time.monotonic() - started:.1f} s)"
    return Row(check.name, "note" if isinstance(detail, Note) else "ok", detail + seconds)


def one_line(error: BaseException) -> str:
    """The first line says what; a message of several lines is cut there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def send(**message: object) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def run_all(checks: list[Check], first: int, device_works: Callable[[], bool]) -> bool:
    """Runs the checks from `first` on and sends their rows. False: the device answers nothing more after a failure,
    as after an illegal memory access, and a fresh process must take over."""
    for check in checks[first:]:
        send(begin=check.name)
        faulthandler.dump_traceback_later(CHECK_SECONDS, exit=True)
        row = run_check(check)
        faulthandler.cancel_dump_traceback_later()
        send(row=asdict(row))
        if row.result == "FAIL" and not device_works():
            return False
    return True
