"""The engine's end of a worker's connections, by hand."""

from typing import Any

import zmq

from engine_core.worker_messages import decode_from_worker, encode

TIMEOUT_MS = 20_000


class EngineSocket:
    """A ROUTER socket that sends to the connection which has sent the last message."""

    def __init__(self, endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._socket.bind(endpoint)
        self.peer = b""  # that sent the last message

    def receive(self) -> Any:
        self.peer, *frames = self._socket.recv_multipart()
        return decode_from_worker(frames)

    def send(self, message: Any) -> None:
        self._socket.send_multipart([self.peer, message if isinstance(message, bytes) else encode(message)])

    def close(self) -> None:
        self._socket.close()
