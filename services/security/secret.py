"""The secret of a deployment, and the keys that each process derives from it (HKDF-SHA256, RFC 5869)."""

from dataclasses import dataclass, field
from pathlib import Path

from services.errors import Fatal
from services.options.common import SecretOptions

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


def cluster_secret(options: SecretOptions) -> ClusterSecret | None:
    """Returns the secret of the environment or of a file; None without either. Raises Fatal."""
    if options.cluster_secret_file is not None:
        return read_secret(options.cluster_secret_file)
    if options.cluster_secret is not None:
        return _checked(options.cluster_secret.encode(errors="surrogateescape"), "TANDEM_CLUSTER_SECRET")
    return None


def read_secret(file: str, option: str = "--cluster-secret-file") -> ClusterSecret:
    """Returns the secret in `file`. /dev/fd/N as the file takes it from a descriptor.

    Raises Fatal, with the name of the option, when the file cannot be read or the secret has a wrong size.
    """
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_BYTES + 2)  # room for a line end, and one byte that shows that it is too long
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        reason = error.strerror if isinstance(error, OSError) else error
        raise Fatal(f"{option}: {file} cannot be read: {reason}") from error
    return _checked(content, f"{option} {file}")


def _checked(content: bytes, source: str) -> ClusterSecret:
    """The secret without white space at its ends. Raises Fatal when it has a wrong size."""
    value = content.strip()
    if not MIN_BYTES <= len(value) <= MAX_BYTES:
        raise Fatal(f"{source}: a secret has from {MIN_BYTES} to {MAX_BYTES} bytes, and this one has {len(value)}")
    return ClusterSecret(value)
