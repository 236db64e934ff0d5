"""Runs all checks: those that may run concurrently in several child processes, then the others in one of them.

Concurrent checks spend most of their time on compiling kernels. At the time limit all processes are killed; unfinished
checks get a "not run" row.
"""

import contextlib
import queue
import threading
import time
from typing import IO

from loadtest.gpu.child import Child
from loadtest.gpu.report import Report
from loadtest.gpu.table import Row

Indices = queue.SimpleQueue[int]


class Children:
    """`processes` child processes that share the checks. `command` starts one, `scratch` is their TMPDIR, `end` is the
    time limit, as a time.monotonic(). `log`: as of Child."""

    def __init__(
        self, command: list[str], scratch: str, processes: int, end: float, report: Report, log: IO[str] | None = None
    ) -> None:
        self._children = [Child(command, scratch, end, log) for _ in range(processes)]
        self._end = end
        self._report = report
        self._names: list[str] = []

    def run(self) -> None:
        """Runs all checks; the report gets their rows.

        If the first process ends before it lists its checks, the only row is "start", FAIL.
        """
        timer = threading.Timer(self._end - time.monotonic(), self.kill)
        timer.daemon = True
        timer.start()
        try:
            first = self._children[0].start()
            if not first:
                status = self._children[0].stop()
                self._report.begin([], {})
                self._report.add(Row("start", "FAIL", f"the process ended with status {status} before the first check"))
                return
            self._names = first["names"]
            self._report.begin(self._names, first["about"])
            self._run_all(first["alone"])
        finally:
            timer.cancel()
            self.kill()

    def kill(self) -> None:
        """Kills all processes and what they started."""
        for child in self._children:
            child.kill()

    def _run_all(self, alone: list[bool]) -> None:
        concurrent, serial = Indices(), Indices()
        for index, is_alone in enumerate(alone):
            (serial if is_alone else concurrent).put(index)
        first, *others = self._children
        threads = [threading.Thread(target=self._work, args=(child, concurrent)) for child in others]
        for thread in threads:
            thread.start()
        self._run(first, concurrent)
        for thread in threads:
            thread.join()
        self._run(first, serial)
        first.stop()

    def _work(self, child: Child, indices: Indices) -> None:
        self._run(child, indices)
        child.stop()

    def _run(self, child: Child, indices: Indices) -> None:
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < self._end:
                index = indices.get_nowait()
                self._report.take(index, child.run(index, self._names[index]))
