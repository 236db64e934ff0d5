"""Tells which ends of child processes were the kernel's out-of-memory killer, and lets the next worker be smaller.

docs/decisions/0048-memory-and-disk.md
"""

import signal

from services.machine import oom_kills
from services.process.worker_record import RecordFile


class OutOfMemoryKills:
    def __init__(self, record: RecordFile) -> None:
        self._record = record
        self._seen = oom_kills()

    def explain(self, name: str, returncode: int) -> str:
        """Returns the end of a log line about a child that has ended: empty unless the kernel killed it for its memory.

        After such an end of a worker, the next one's KV cache is smaller. A kill counts as the kernel's if the number
        of such kills has grown since the last end.
        """
        before, self._seen = self._seen, oom_kills()
        if returncode != -signal.SIGKILL or self._seen <= before:
            return ""
        found = " by the kernel, because memory ran out"
        if name == "worker":
            return f"{found}: {self._record.memory_ran_out(loading=not self._record.read().serving)}"
        return f"{found}: raise the memory limit, or lower --kv-cache-memory-bytes"
