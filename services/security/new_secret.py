"""`tandem new-secret --out FILE`: writes a new secret unless the file exists, so it can run before every start."""

import os
import secrets
import sys
import tempfile
from pathlib import Path

from services.errors import Fatal
from services.options.tools import NewSecretOptions
from services.security.secret import read_secret
from services.telemetry.logs import fail

SECRET_BYTES = 32


def main(options: NewSecretOptions) -> int:
    """Runs the command. Returns the exit status: 0, or 1 after Fatal, reported in one line.

    A file that exists must hold a valid secret.
    """
    file = Path(options.out)
    try:
        made = write_new(file)
        read_secret(str(file), "--out")
    except Fatal as error:
        return fail("new-secret", error)
    sys.stdout.write(f"{file}: {'a new secret' if made else 'exists already'}\n")
    return 0


def write_new(file: Path) -> bool:
    """Writes a new secret atomically and returns True; returns False if the file exists.

    Raises Fatal if it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}-") as written:
            os.fchmod(written.fileno(), 0o400)
            written.write(f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
            written.flush()
            os.fsync(written.fileno())
            os.link(written.name, file)
    except FileExistsError:
        return False
    except OSError as error:
        raise Fatal(f"--out {file}: cannot be written: {error.strerror}") from error
    return True
