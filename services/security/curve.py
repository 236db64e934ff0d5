"""CURVE for ZeroMQ: both ends derive their keys from the secret, and the engine's end accepts only the worker's key.

Without a ZAP handler libzmq accepts every client that knows the server's public key. So the handler starts before the
bind, and ZAP_ENFORCE_DOMAIN makes libzmq refuse all clients when the handler is gone.
RFC 26 and 27 of ZeroMQ · https://api.zeromq.org/4-3:zmq-curve
"""

import hmac
import logging

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from services.security.secret import ClusterSecret
from services.telemetry.logs import RateLimitedLog

KEY_BYTES = 32
DOMAIN = b"tandem"
log = logging.getLogger(__name__)


def _pair(secret: ClusterSecret, end: str) -> tuple[bytes, bytes]:
    """Returns the public and the secret key, in Z85, of one end: "engine" or "worker"."""
    key = z85.encode(secret.derive(f"zeromq curve {end}", KEY_BYTES))
    return zmq.curve_public(key), key


class CurveAuthenticator:
    """The ZAP handler: decides which clients a CURVE server accepts. Runs in its own thread until `close`."""

    def __init__(self, secret: ClusterSecret, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        """Starts the thread. `context` is that of the sockets; it must not have another ZAP handler."""
        self._secret = secret
        self._worker_key, _ = _pair(secret, "worker")
        self._refusals = RateLimitedLog(log, logging.WARNING)
        self._handler = ThreadAuthenticator(context, log=logging.getLogger("zmq.auth"))
        self._handler.start()
        self._handler.configure_curve_callback(DOMAIN.decode(), self)

    def configure_server(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes the socket a CURVE server with the engine's key. Call it before the bind."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, _pair(self._secret, "engine")[1])
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def callback(self, domain: str, key: bytes) -> bool:
        """Returns whether a client with this public key (Z85) is accepted. pyzmq calls it once for each handshake."""
        accepted = hmac.compare_digest(key, self._worker_key)
        if not accepted:
            self._refusals.log("refused a client with another key on the worker socket")
        return accepted

    def close(self) -> None:
        """Stops the thread. The sockets must be closed first."""
        self._handler.stop()


def configure_client(socket: "zmq.Socket[bytes]", secret: ClusterSecret) -> None:
    """Makes the socket the worker's CURVE client, which accepts only the engine's key. Call it before the connect."""
    public, key = _pair(secret, "worker")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, _pair(secret, "engine")[0])
