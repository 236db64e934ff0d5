"""Socket options of both ends of the ZeroMQ edge: heartbeats detect a stopped peer, and frames have a maximum size."""

import zmq

HEARTBEAT_MS = 500
TIMEOUT_MS = 2500  # no limit on a step: ZeroMQ's own thread answers heartbeats while a peer computes
HANDSHAKE_MS = 5000
# Without a limit: libzmq 4.3.5 aborts the process if a peer goes away after libzmq stopped reading from it (assertion
# !_io_error in stream_engine_base.cpp). Only a peer with the secret can fill the queue.
NO_LIMIT = 0


def prepare(socket: "zmq.Socket[bytes]", max_frame_bytes: int) -> None:
    """Sets the options; call it before the bind or connect.

    libzmq disconnects a peer that sends a frame of more than `max_frame_bytes`.
    """
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)  # as well as IPv4
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.RCVHWM, NO_LIMIT)
