"""The directory in which the sockets between the processes of one tree live: readable by this user only."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from services.errors import Fatal
from services.machine import MAX_SOCKET_PATH

LONGEST_SOCKET = "tokenizer-63.sock"
SHORT_FOLDER = Path("/tmp")
# A list of addresses has commas; gRPC takes an address for a URI (RFC 3986), and ZeroMQ its text for UTF-8.
UNFIT = re.compile("[,#?%\ud800-\udfff]")


@contextlib.contextmanager
def runtime_dir(given: str | None) -> Iterator[Path]:
    """`given`, which is made and locked; without one a new directory, which is removed at the end.

    Raises Fatal where it cannot be used.
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
        raise Fatal(f"--runtime-dir: the path of a socket cannot have the character {unfit.group()!a} in it: {folder}")
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
        yield folder


def _new_folder() -> Path:
    """Beneath TMPDIR, or in /tmp where the path of a socket cannot be as TMPDIR's is. Raises Fatal."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        if UNFIT.search(str(folder)) or not _has_room_for_sockets(folder):
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="tandem-", dir=SHORT_FOLDER))
    except OSError as error:
        raise Fatal(f"--runtime-dir: none is given, and none can be made: {error.strerror or error}") from error
    return folder


def _has_room_for_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder / LONGEST_SOCKET)) <= MAX_SOCKET_PATH
