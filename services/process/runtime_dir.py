"""The directory of the Unix sockets between the processes of `tandem serve`. Only this user can enter a new one."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from services.errors import Fatal
from services.machine import MAX_SOCKET_PATH, files

LONGEST_SOCKET = "tokenizer-63.sock"
SOCKETS = ("worker.sock", "engine.sock", "tokenizer-*.sock")  # the directory may hold those of other programs
SHORT_FOLDER = Path("/tmp")
# Lists of addresses are comma-separated; gRPC parses an address as a URI (RFC 3986), ZeroMQ decodes it as UTF-8.
UNFIT = re.compile("[,#?%\ud800-\udfff]")


@contextlib.contextmanager
def runtime_dir(given: str | None) -> Iterator[Path]:
    """Yields the directory `given`, created if missing and locked until the end. Then its sockets are removed: a killed
    process leaves its own. The directory is not.

    For None, yields a new directory and removes it at the end.
    Raises Fatal if the directory cannot be used, or another server uses it.
    """
    if given is None:
        folder = _new_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = Path(given).absolute()
    if unfit := UNFIT.search(str(folder)):
        raise Fatal(f"--runtime-dir: the path of a socket cannot contain the character {unfit.group()!a}: {folder}")
    if not _has_room_for_sockets(folder):
        raise Fatal(f"--runtime-dir: a socket in {folder} would have a path of more than {MAX_SOCKET_PATH} bytes")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Fatal(f"--runtime-dir: another server uses {folder}") from error
    except OSError as error:
        raise Fatal(f"--runtime-dir: {folder} cannot be used: {error.strerror}") from error
    with lock:
        try:
            yield folder
        finally:
            _remove_sockets(folder)


def _remove_sockets(folder: Path) -> None:
    for found in (path for pattern in SOCKETS for path in folder.glob(pattern)):
        with contextlib.suppress(OSError):
            if found.is_socket():
                found.unlink()


def _new_folder() -> Path:
    """Makes and returns a directory in TMPDIR, or in /tmp if a socket in TMPDIR would have an invalid path.

    It is in memory if no disk can be written.

    Raises Fatal if it cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        if UNFIT.search(str(folder)) or not _has_room_for_sockets(folder):
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="tandem-", dir=SHORT_FOLDER))
    except OSError as error:
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="tandem-", dir=files.SHARED_MEMORY))
        raise Fatal(
            f"--runtime-dir is not set, and no temporary directory can be made: {error.strerror or error}"
        ) from error
    return folder


def _has_room_for_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder / LONGEST_SOCKET)) <= MAX_SOCKET_PATH
