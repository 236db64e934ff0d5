"""Socket options of both ends of the ZeroMQ edge: heartbeats detect a stopped peer, and frames have a maximum size."""

import zmq

HEARTBEAT_MS = 500
TIMEOUT_MS = 5000  # a peer that computes does not stop ZeroMQ's own thread, so this is no limit on a step
HANDSHAKE_MS = 5000
MAX_RESULT_BYTES = 64 * 2**20  # of 65,536 requests with 20 logprobs each: 11 MB
MAX_PLAN_BYTES = 2**30  # of 1,024 requests that come back with 256 thousand tokens each


def prepare(socket: "zmq.Socket[bytes]", max_frame_bytes: int) -> None:
    """Call it before the bind or connect. libzmq closes the connection of a peer that sends a larger frame."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)  # as well as IPv4
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
