"""The rows of a run: prints them in the order of the list, and writes each to rows.jsonl as soon as it is known.

The first line of rows.jsonl is about the run: device, machine, versions, call, date, commit. Each other line is a row:
index in the table, name, result, detail, seconds, data.
"""

import datetime
import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.gpu.table import Row

ROWS_FILE = "rows.jsonl"
WIDTH = 160  # characters of a detail on the terminal, where rows.jsonl has all of them


class Report:
    """`call`: the name of the call. `folder`: of rows.jsonl; None: rows are only printed."""

    def __init__(self, call: str, folder: Path | None) -> None:
        self._call = call
        self._path = folder / ROWS_FILE if folder is not None else None
        self._width = None if folder is None else WIDTH
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._rows: dict[int, Row] = {}
        self._num_printed = 0

    def begin(self, names: Sequence[str], about: dict[str, Any]) -> None:
        """Sets the names of the checks. Starts rows.jsonl anew; `about`: what its first line says of the machine."""
        self._names = list(names)
        if self._path is not None:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            first = {"call": self._call, "date": now, "commit": commit(), **about}
            self._path.write_text(json.dumps(first) + "\n")

    def take(self, index: int, row: Row) -> None:
        """Records the row of the check `index`. Prints all rows that have no missing row before them."""
        with self._lock:
            self._rows[index] = row
            if self._path is not None:
                with self._path.open("a") as rows:
                    rows.write(json.dumps({"index": index, **asdict(row)}) + "\n")
            while self._num_printed in self._rows:
                print(self._rows[self._num_printed].line(self._width), flush=True)
                self._num_printed += 1

    def add(self, row: Row) -> None:
        """Adds a row at the end of the table."""
        self._names.append(row.name)
        self.take(len(self._names) - 1, row)

    def finish(self) -> list[Row]:
        """Adds a "not run" row for each check without one. Returns all rows in order."""
        for index, name in enumerate(self._names):
            if index not in self._rows:
                self.take(index, Row(name, "not run", "not started before the time limit"))
        return [self._rows[index] for index in range(len(self._names))]


def commit() -> str | None:
    """Returns the commit of the working directory, with "+" if tracked files differ from it; None without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
