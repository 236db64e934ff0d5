"""On the path of a server under test: hides Linux-only interfaces and Triton from its processes.

Python code finds no files in /proc and /sys; libraries in C still do.
"""

import errno
import mmap
import os
import sys
import time


def _hide(event: str, args: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])


for module, names in (
    (os, ("pidfd_open", "sched_getaffinity", "waitid", "eventfd", "memfd_create")),
    (time, ("CLOCK_BOOTTIME",)),
    (mmap, ("MADV_HUGEPAGE",)),
):
    for name in names:
        delattr(module, name)
sys.modules["triton"] = None  # type: ignore[assignment]  # what import takes for a package that is not there
sys.addaudithook(_hide)
