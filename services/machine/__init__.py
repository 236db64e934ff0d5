"""Facts about this machine and its processes, from the operating system, behind functions that work on any system.

All Linux-only code of `services` is here: /proc, /sys, pidfds, CPU affinity. Each use has a fallback for other
systems. Tests reach the fallback by hiding the Linux interface.
"""

from services.machine.available import available_bytes, available_cores
from services.machine.child_ends import watch_ends
from services.machine.files import unnamed_file
from services.machine.hardware import busy_seconds, cpu_model, last_cache_bytes
from services.machine.network import MAX_SOCKET_PATH, authority, is_all_interfaces, loopback, unacknowledged_bytes
from services.machine.oom_kills import oom_kills
from services.machine.processes import (
    allow_open_files,
    cpu_seconds,
    has_terminal,
    name_process,
    process_age,
    reap_orphans,
    stopped_children,
)

__all__ = [
    "MAX_SOCKET_PATH",
    "allow_open_files",
    "authority",
    "available_bytes",
    "available_cores",
    "busy_seconds",
    "cpu_model",
    "cpu_seconds",
    "has_terminal",
    "is_all_interfaces",
    "last_cache_bytes",
    "loopback",
    "name_process",
    "oom_kills",
    "process_age",
    "reap_orphans",
    "stopped_children",
    "unacknowledged_bytes",
    "unnamed_file",
    "watch_ends",
]
