"""A file without a name, in memory where the system can: what several processes map to share a few numbers."""

import os
import tempfile


def unnamed_file(num_bytes: int) -> int:
    """Returns the descriptor of a new file of so many zero bytes. It lives as long as a process has it open or mapped.

    On Linux it is in memory (memfd_create(2)), elsewhere a temporary file.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("tandem")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, num_bytes)
    return fd
