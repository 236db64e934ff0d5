"""Runs all checks: those that may run concurrently in several child processes, then the others in one of them.

Concurrent checks spend most of their time on compiling kernels. At the time limit all processes are killed; unfinished
checks get a "not run" row.
"""

import contextlib
import queue
import threading
import time

from loadtest.gpu.child import Child
from loadtest.gpu.table import Row

Indices = queue.SimpleQueue[int]


class Children:
    """`processes` child processes that share the checks. `command` starts one, `scratch` is their TMPDIR, `end` is the
    time limit, as a time.monotonic()."""

    def __init__(self, command: list[str], scratch: str, processes: int, end: float) -> None:
        self._children = [Child(command, scratch, end) for _ in range(processes)]
        self._end = end
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._rows: dict[int, Row] = {}
        self._num_printed = 0

    def rows(self) -> list[Row]:
        """Runs all checks and returns their rows. Prints each row as soon as all earlier rows are printed.

        If the first process ends before it lists its checks, the only row is "start", FAIL.
        """
        timer = threading.Timer(self._end - time.monotonic(), self._kill)
        timer.daemon = True
        timer.start()
        first = self._children[0].start()
        if not first:
            self._names = ["start"]
            status = self._children[0].stop()
            self._take(0, Row("start", "FAIL", f"the process ended with status {status} before the first check"))
        else:
            self._names = first["names"]
            self._run_all(first["alone"])
        timer.cancel()
        for index, name in enumerate(self._names):
            if index not in self._rows:
                self._take(index, Row(name, "not run", "not started before the time limit"))
        return [self._rows[index] for index in range(len(self._names))]

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
                self._take(index, child.run(index, self._names[index]))

    def _take(self, index: int, row: Row) -> None:
        with self._lock:
            self._rows[index] = row
            while self._num_printed in self._rows:
                print(self._rows[self._num_printed], flush=True)
                self._num_printed += 1

    def _kill(self) -> None:
        for child in self._children:
            child.kill()
