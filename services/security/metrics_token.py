"""The bearer token of /metrics, which a metrics port needs if other machines can reach it."""

import ipaddress
import socket
from pathlib import Path

from services.errors import Fatal
from services.security.secret import ClusterSecret

TOKEN_BYTES = 32


def metrics_token(file: str | None, secret: ClusterSecret | None) -> str | None:
    """Returns the token in `file`, else one derived from `secret`; None without either.

    Raises Fatal if the file cannot be read or does not contain one token.
    """
    if file is None:
        return secret.derive("metrics token", TOKEN_BYTES).hex() if secret is not None else None
    try:
        token = Path(file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not in ASCII"
        raise Fatal(f"--metrics-token-file: {file} cannot be read: {reason}") from error
    if not token or not token.isprintable() or " " in token:
        raise Fatal(f"--metrics-token-file: {file} must contain one token, without spaces")
    return token


def token_to_ask_for(front: socket.socket, file: str | None, secret: ClusterSecret | None) -> str | None:
    """Returns the token that requests to `front` must carry; None on a loopback address without a token file.

    Raises Fatal as metrics_token does, and when other machines can reach `front` and there is no token.
    """
    host = front.getsockname()[0]
    if file is None and ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return None
    token = metrics_token(file, secret)
    if token is None:
        raise Fatal(
            f"--metrics-listen: other machines can reach {host}, so /metrics needs a token: give --metrics-token-file,"
            " or --cluster-secret-file, from which one is derived"
        )
    return token
