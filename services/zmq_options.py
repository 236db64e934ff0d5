"""What both ends of the ZeroMQ socket set: without heartbeats a stopped peer is invisible."""

import zmq

HEARTBEAT_MS = 500
TIMEOUT_MS = 5000  # a peer that computes does not stop ZeroMQ's own thread, so this is no limit on a step


def set_heartbeat(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
