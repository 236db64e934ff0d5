"""Attacks on TCP and ZeroMQ sockets: malformed bytes without the secret, malformed frames with it, slow clients.

Each attack takes a number of frames, and ends by itself.
"""

import contextlib
import random
import socket
from collections.abc import Sequence

import zmq

from engine_core.step_plan import StepResult, pack_i32
from engine_core.worker_messages import PROTOCOL, Prepared, PreparerHello, Register, StepDone, WorkerHello, encode
from services.process.metrics_server import MAX_CONNECTIONS
from services.security import curve
from services.zeromq.frame_sizes import MAX_RESULT_BYTES
from tests.fakes import make_facts
from tests.security.deployment import Deployment
from tests.security.malformed import mutated
from tests.security.peers import OURS, zmq_socket

FRAMES_PER_CONNECTION = 25
# One large frame, or one worker, for this many frames of an attack: they take longer.
FRAMES_PER_LARGE_FRAME, FRAMES_PER_WORKER = 10_000, 500
ZMTP_GREETING = bytes.fromhex("ff00000000000000017f0300") + b"CURVE" + bytes(47)  # ZMTP 3.0 (RFC 23)
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)  # RFC 8446, shortened in many places
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
WORKER_FRAMES = [
    encode(WorkerHello(PROTOCOL, 1, 0)),
    encode(Register(1, make_facts())),
    encode(PreparerHello(PROTOCOL, 1)),
    encode(Prepared(1, 7, "no")),
    encode(StepDone(StepResult(1, 1, *(pack_i32([1, 2]) for _ in range(6)), b"\0" * 8))),
]


def raw_bytes(address: str, beginnings: Sequence[bytes], num_frames: int, seed: int) -> None:
    """Sends mutations of `beginnings` without the secret, on connections that the server may close at any time."""
    rng = random.Random(seed)
    host, _, port = address.rpartition(":")
    while num_frames > 0:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=5) as peer,
        ):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            for _ in range(min(FRAMES_PER_CONNECTION, num_frames)):
                num_frames -= 1
                peer.sendall(mutated(rng.choice(beginnings), rng))


def frames_with_secret(address: str, num_frames: int, seed: int) -> None:
    """Sends malformed frames as a second worker with the secret."""
    rng = random.Random(seed)
    left = num_frames
    while left > 0:
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            peer.setsockopt(zmq.LINGER, 2000)
            peer.connect(f"tcp://{address}")
            for _ in range(min(100 * FRAMES_PER_CONNECTION, left)):
                left -= 1
                frame = mutated(rng.choice(WORKER_FRAMES), rng)
                peer.send_multipart([frame] * rng.choice([1, 1, 1, 3]))


def large_frames(address: str, num_frames: int) -> None:
    """Sends frames above the size limit, with the secret: libzmq closes the connection before it reads them."""
    for _ in range(max(1, num_frames // FRAMES_PER_LARGE_FRAME)):
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            peer.connect(f"tcp://{address}")
            peer.send(bytes(MAX_RESULT_BYTES + 1), copy=False)
            peer.poll(200)


def other_workers(address: str, num_frames: int) -> None:
    """Registers workers that know the engine's public key and have another key of their own. Asserts that the engine
    answers none."""
    for _ in range(max(1, num_frames // FRAMES_PER_WORKER)):
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            public, key = zmq.curve_keypair()
            peer.setsockopt(zmq.CURVE_PUBLICKEY, public)
            peer.setsockopt(zmq.CURVE_SECRETKEY, key)
            peer.connect(f"tcp://{address}")
            peer.send(WORKER_FRAMES[0])
            assert not peer.poll(20), "the engine answered it"


def slow_clients(at: Deployment, num_bytes: int) -> None:
    """Sends single bytes to every metrics port, from more clients than it accepts. Asserts that /health answers."""
    with contextlib.ExitStack() as stack:
        slow = []
        for address in at.metrics_addresses:
            host, _, port = address.rpartition(":")
            peers = [socket.create_connection((host.strip("[]"), int(port)), 5) for _ in range(2 * MAX_CONNECTIONS)]
            slow += [stack.enter_context(peer) for peer in peers]
        for index in range(num_bytes):
            with contextlib.suppress(OSError):  # the metrics server closed it in favour of a newer one
                slow[index % len(slow)].sendall(b"G")
            if index % 1000 == 0:
                assert at.healthy()
