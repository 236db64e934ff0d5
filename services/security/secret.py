"""The secret of a deployment, and the keys that each process derives from it (HKDF-SHA256, RFC 5869)."""

from dataclasses import dataclass, field
from pathlib import Path

from services.errors import Fatal

MIN_BYTES = 32  # as `openssl rand -hex 32` has 64; a key of 256 bits needs no less
MAX_BYTES = 4096
_SALT = b"tandem cluster secret v1"


@dataclass(frozen=True)
class ClusterSecret:
    """All processes of a deployment have the same. `repr` leaves the value out, so that no log shows it."""

    value: bytes = field(repr=False)

    def derive(self, purpose: str, num_bytes: int) -> bytes:
        """Returns the key for one purpose. A key reveals neither the secret nor the keys of other purposes."""
        from cryptography.hazmat.primitives.hashes import SHA256  # only where an edge is not a Unix socket
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), num_bytes, salt=_SALT, info=purpose.encode()).derive(self.value)


def cluster_secret(value: str | None, file: str | None, option: str = "--cluster-secret-file") -> ClusterSecret | None:
    """Returns the secret: `value`, or the content of `file`, without white space at its ends. None without either.

    /dev/fd/N as the file takes the secret from a descriptor. Raises Fatal when it cannot be read or has a wrong size.
    """
    if file is not None:
        found, name = _read(file, option), f"{option} {file}"
    elif value is not None:
        found, name = value.encode(errors="surrogateescape"), "TANDEM_CLUSTER_SECRET"
    else:
        return None
    found = found.strip()
    if not MIN_BYTES <= len(found) <= MAX_BYTES:
        raise Fatal(f"{name}: a secret has from {MIN_BYTES} to {MAX_BYTES} bytes, and this one has {len(found)}")
    return ClusterSecret(found)


def _read(file: str, option: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_BYTES + 2)  # room for a line end, and one byte that shows that it is too long
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        reason = error.strerror if isinstance(error, OSError) else error
        raise Fatal(f"{option}: {file} cannot be read: {reason}") from error
