"""A worker's connection to its engine: a ZeroMQ DEALER socket, and one that tells when the connection is lost."""

import zmq

from services.security.secret import ClusterSecret
from services.zeromq.frame_sizes import MAX_PLAN_BYTES
from services.zeromq.socket_options import prepare

Socket = zmq.Socket[bytes]


class EngineSocket:
    """Both sockets belong to one thread at a time."""

    def __init__(self, endpoint: str, secret: ClusterSecret | None, identity: str) -> None:
        """Starts to connect to `endpoint`, with a secret by CURVE; does not wait. `identity` is never used again."""
        self.messages: Socket = zmq.Context.instance().socket(zmq.DEALER)
        self.messages.setsockopt(zmq.IDENTITY, identity.encode())
        self.messages.setsockopt(zmq.LINGER, 200)
        prepare(self.messages, MAX_PLAN_BYTES)
        if secret is not None:
            from services.security.curve import configure_client  # imports asyncio

            configure_client(self.messages, secret)
        # Readable once the connection is lost.
        self.losses: Socket = self.messages.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.messages.connect(endpoint)

    def close(self) -> None:
        self.messages.disable_monitor()
        self.losses.close()
        self.messages.close()
