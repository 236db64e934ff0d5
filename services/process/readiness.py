"""A pipe through which a child tells its parent that it is ready: it needs no HTTP, TLS or certificate."""

import contextlib
import os
import select


class Readiness:
    """The parent's side. `child_fd`: the end that a child inherits (`--ready-fd`). A context manager closes both."""

    def __init__(self) -> None:
        self._own_fd, self.child_fd = os.pipe()
        os.set_blocking(self.child_fd, False)  # of a child that is restarted nobody reads

    def __enter__(self) -> "Readiness":
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._own_fd)
        os.close(self.child_fd)

    def is_set(self) -> bool:
        """Returns whether a child has called `tell`. It stays True."""
        return bool(select.select([self._own_fd], [], [], 0)[0])


def tell(fd: int) -> None:
    """Tells the parent that this process is ready. `fd`: of --ready-fd."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(fd, b"\n")
