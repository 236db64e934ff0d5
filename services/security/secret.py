"""The secret of a deployment, and the keys that each process derives from it (HKDF-SHA256, RFC 5869)."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from services.errors import Fatal
from services.options.common import SecretOptions

MIN_BYTES = 32  # 256 bits; `openssl rand -hex 32` prints 64
MAX_BYTES = 4096
ROOT_KEY_BYTES = 32
_SALT = b"tandem cluster secret v1"


@dataclass(frozen=True)
class ClusterSecret:
    """The secret that all processes of a deployment share. `repr` omits the value, so that no log shows it."""

    value: bytes = field(repr=False)

    def derive(self, purpose: str, num_bytes: int) -> bytes:
        """Returns the key of `num_bytes` for one purpose. It reveals neither the secret nor keys of other purposes."""
        from cryptography.hazmat.primitives.hashes import SHA256  # only where an edge is not a Unix socket
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), num_bytes, salt=_SALT, info=purpose.encode()).derive(self.value)


def cluster_secret(options: SecretOptions) -> ClusterSecret | None:
    """Returns the secret from --cluster-secret-file, else from TANDEM_CLUSTER_SECRET; None without either.

    Raises Fatal as read_secret does.
    """
    if options.cluster_secret_file is not None:
        return read_secret(options.cluster_secret_file)
    if options.cluster_secret is not None:
        return _checked(options.cluster_secret.encode(errors="surrogateescape"), "TANDEM_CLUSTER_SECRET")
    return None


def cache_root_key(secret: ClusterSecret | None, passed: str | None) -> bytes:
    """Returns the key of the root hashes of prefix caches: derived from `secret`, else `passed`, else a new random one.

    So all engines of a deployment have one key, and so have an engine of `tandem serve` and those that replace it.
    Raises Fatal if `passed`, the value of TANDEM_CACHE_ROOT_KEY, has a wrong size.
    """
    if secret is not None:
        return secret.derive("cache roots", ROOT_KEY_BYTES)
    if passed is not None:
        return _checked(passed.encode(errors="surrogateescape"), "TANDEM_CACHE_ROOT_KEY").value
    return secrets.token_bytes(ROOT_KEY_BYTES)


def read_secret(file: str, option: str = "--cluster-secret-file") -> ClusterSecret:
    """Returns the secret in `file`; /dev/fd/N reads an inherited descriptor.

    Raises Fatal, with the name of the option, when the file cannot be read or the secret has a wrong size.
    """
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_BYTES + 2)  # a line end, and one byte more to detect a secret that is too long
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        reason = error.strerror if isinstance(error, OSError) else error
        raise Fatal(f"{option}: {file} cannot be read: {reason}") from error
    return _checked(content, f"{option} {file}")


def _checked(content: bytes, source: str) -> ClusterSecret:
    """Returns the secret in `content`, without white space at its ends. Raises Fatal, with `source`, for a bad size."""
    value = content.strip()
    if not MIN_BYTES <= len(value) <= MAX_BYTES:
        raise Fatal(f"{source}: a secret must have {MIN_BYTES} to {MAX_BYTES} bytes, and this one has {len(value)}")
    return ClusterSecret(value)
