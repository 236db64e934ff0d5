"""What the operating system says of this machine and its processes. Callers need not know which system it is.

All of the package that only Linux has stands in here: /proc, /sys, pidfds, sets of usable cores. For each there is a
second way for a system without it, which tests switch on by taking the first away.
"""

from services.machine.available import available_bytes, available_cores
from services.machine.child_ends import watch_ends
from services.machine.hardware import busy_seconds, cpu_model, last_cache_bytes
from services.machine.network import MAX_SOCKET_PATH, authority, loopback
from services.machine.processes import allow_open_files, cpu_seconds, process_age, stopped_children

__all__ = [
    "MAX_SOCKET_PATH",
    "allow_open_files",
    "authority",
    "available_bytes",
    "available_cores",
    "busy_seconds",
    "cpu_model",
    "cpu_seconds",
    "last_cache_bytes",
    "loopback",
    "process_age",
    "stopped_children",
    "watch_ends",
]
