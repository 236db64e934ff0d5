"""`tandem internal-credentials --out DIR`: writes the files that a client of the internal gRPC edges and of
/metrics needs.
"""

import os
import sys
from pathlib import Path

from services.errors import Fatal
from services.options.tools import CredentialsOptions
from services.security.credential_files import AUTHORITY, CERTIFICATE, KEY
from services.security.metrics_token import metrics_token
from services.security.secret import ClusterSecret, cluster_secret
from services.telemetry.logs import fail


def main(options: CredentialsOptions) -> int:
    """Runs the command. Returns the exit status: 0, or 1 after Fatal, reported in one line."""
    folder = Path(options.out)
    try:
        secret = cluster_secret(options)
        if secret is None:
            raise Fatal("--cluster-secret-file is missing: certificates and token are derived from the secret")
        write(secret, folder)
    except Fatal as error:
        return fail("internal-credentials", error)
    sys.stdout.write(f"{folder}: {AUTHORITY}, {CERTIFICATE}, {KEY}, metrics-token\n")
    return 0


def write(secret: ClusterSecret, folder: Path) -> None:
    """Writes or replaces ca.pem, certificate.pem, key.pem and metrics-token in `folder`, which it creates if missing.

    Raises Fatal if they cannot be written.
    """
    from services.security.tls import certificates  # needs cryptography, and imports grpc

    own, token = certificates(secret), metrics_token(None, secret)
    assert token is not None
    files = {
        AUTHORITY: own.authority,
        CERTIFICATE: own.certificate,
        KEY: own.key,
        "metrics-token": f"{token}\n".encode(),
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            _write(folder / name, content)
    except OSError as error:
        raise Fatal(f"--out {folder}: cannot be written: {error.strerror}") from error


def _write(file: Path, content: bytes) -> None:
    """Writes a file with mode 0600, also when it existed with another mode."""
    with open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(content)
