"""The file by which another command finds a running `tandem serve` of this user, and follows its reload.

It is in the runtime directory: its launcher's process id, and how far its last reload is. The launcher holds a lock on
the directory, so that a file that a killed one left behind is told from the file of one that runs.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.machine.files import SHARED_MEMORY
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
NAME = "launcher.json"
RUNNING, DONE, FAILED = "running", "done", "failed"


class Control(msgspec.Struct):
    """`reloads`: how many have begun. `state` is that of the last one; `text`: what it did last, or why it failed."""

    pid: int
    reloads: int = 0
    state: str = DONE
    text: str = ""


class ControlFile:
    """The launcher's end. A write that fails is logged: it is no reason not to serve."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._control = Control(os.getpid())
        self._failures = RateLimitedLog(log, logging.WARNING)
        self._open = contextlib.ExitStack()
        with contextlib.suppress(OSError):  # without a lock, other commands do not find the server
            lock = os.open(folder, os.O_RDONLY)
            self._open.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
        self.report(DONE, "")

    def begin(self) -> None:
        """A further reload begins."""
        self._control.reloads += 1
        self.report(RUNNING, "")

    def report(self, state: str, text: str) -> None:
        self._control.state, self._control.text = state, text
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(self._control))
            new.replace(self._path)
        except OSError as error:
            self._failures.log("%s: cannot be written: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)

    @property
    def has_folder(self) -> bool:
        """Whether the runtime directory still exists."""
        return self._path.parent.is_dir()

    def __enter__(self) -> "ControlFile":
        return self

    def __exit__(self, *exception: object) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._open.close()


def read(folder: Path) -> Control | None:
    """Returns what a launcher has written in this directory; None if there is nothing, or it does not run any more."""
    try:
        control = msgspec.json.decode((folder / NAME).read_bytes(), type=Control)
        return control if _is_locked(folder) else None
    except (OSError, msgspec.MsgspecError):
        return None


def _is_locked(folder: Path) -> bool:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def running() -> Iterator[Path]:
    """Yields the runtime directory of each `tandem serve` of this user that runs without --runtime-dir."""
    parents = [Path(os.environ.get("TMPDIR") or "/tmp"), Path("/tmp"), SHARED_MEMORY]
    with contextlib.suppress(OSError):  # no directory can be written, e.g. because the disk is full
        parents.append(Path(tempfile.gettempdir()))
    for parent in dict.fromkeys(parent.resolve() for parent in parents):
        for folder in sorted(parent.glob("tandem-*")):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.getuid() and read(folder) is not None:
                    yield folder
