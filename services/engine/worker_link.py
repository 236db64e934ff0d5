"""The engine's end of the ZeroMQ socket to its worker. Synchronous, used by the busy loop's thread alone.

Another thread may call `wake()`, which ends a wait. Messages of peers that are not the worker are dropped.
"""

import contextlib
import logging
import socket
from typing import NoReturn

import zmq

from engine_core.step_plan import BadMessage, StepPlan, StepResult
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    EngineMessage,
    Ping,
    Refused,
    Register,
    Step,
    StepDone,
    WorkerHello,
    WorkerMessage,
    decode_from_worker,
    encode,
)
from services.security.addresses import ZEROMQ, check_address
from services.security.curve import CurveAuthenticator
from services.security.secret import ClusterSecret
from services.telemetry.logs import RateLimitedLog
from services.zeromq.socket_options import MAX_RESULT_BYTES, prepare

log = logging.getLogger(__name__)
PROBE_MS = 500  # so often an engine that waits asks whether its worker can still be reached


class WorkerGone(Exception):
    """The worker ended; what it had computed is lost, and plans have to wait for the next one."""


class WorkerLink:
    def __init__(self, endpoint: str, limits: BatchLimits, secret: ClusterSecret | None = None) -> None:
        """Raises zmq.ZMQError when the endpoint cannot be bound, Fatal for an address without protection."""
        secret = check_address(endpoint, secret, ZEROMQ)
        self._limits = limits
        self._unknown_peers = RateLimitedLog(log, logging.WARNING)
        self._peer: bytes | None = None  # routing id of the worker that said hello
        self._epoch: int | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # a ZAP handler belongs to one context
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._authenticator: CurveAuthenticator | None = None
        try:
            self._bind(endpoint, secret)
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        for waited in (self._socket, self._wake_out):
            self._poller.register(waited, zmq.POLLIN)

    def _bind(self, endpoint: str, secret: ClusterSecret | None) -> None:
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        prepare(self._socket, MAX_RESULT_BYTES)
        if secret is not None:
            self._authenticator = CurveAuthenticator(secret, self._context)
            self._authenticator.configure_server(self._socket)
        self._socket.bind(endpoint)

    def wake(self) -> None:
        """Ends a wait of the other thread; may be called from any thread."""
        with contextlib.suppress(OSError):  # full of wakes already, or closed
            self._wake_in.send(b"\0")

    def poll_registration(self) -> Register | None:
        """Waits for the next message or wake; the registration, once it has come. Raises WorkerGone."""
        message = self._next_message()
        return message if isinstance(message, Register) else None

    def send(self, plan: StepPlan) -> None:
        """Raises WorkerGone when the worker is no longer connected: ZeroMQ forgets the routing id of a
        peer that closed, or whose heartbeat stopped."""
        assert self._peer is not None
        try:
            self._socket.send_multipart([self._peer, encode(Step(plan))], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self.give_up()
            raise WorkerGone("the worker is gone") from error

    def poll_result(self) -> StepResult | None:
        """Waits for the next message or wake; a step's result, if one came. One of a dead epoch is dropped."""
        message = self._next_message()
        if isinstance(message, StepDone) and message.result.epoch == self._epoch:
            return message.result
        return None

    def give_up(self) -> None:
        """The worker may still be there, but nothing that it says counts any more."""
        self._peer = self._epoch = None

    def refuse(self, why: str) -> NoReturn:
        """Gives up a worker that broke the protocol, and tells it why. Raises WorkerGone."""
        assert self._peer is not None
        self._answer(self._peer, Refused(why, for_now=True))
        self.give_up()
        raise WorkerGone(f"the worker breaks the protocol ({why})")

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        self._wake_in.close()
        self._wake_out.close()

    def _next_message(self) -> WorkerMessage | None:
        """Waits for a message or a wake; what the worker said, or None. A hello is answered here."""
        if not self._wait():
            return None
        peer, *frames = self._socket.recv_multipart()
        try:
            message = decode_from_worker(frames)
        except BadMessage as bad:
            if peer == self._peer:
                self.refuse(str(bad))
            self._unknown_peers.log("dropped a message of an unknown peer on the worker socket: %s", bad)
            return None
        if isinstance(message, WorkerHello):
            self._greet(peer, message)
            return None
        if peer == self._peer:
            return message
        self._answer(peer, Refused("this engine has given up on it"))
        return None

    def _greet(self, peer: bytes, hello: WorkerHello) -> None:
        lost = False
        if hello.protocol != PROTOCOL:
            answer: EngineMessage = Refused(f"protocol {PROTOCOL} here (engine), {hello.protocol} there (worker)")
        elif self._epoch is not None and self._reaches_worker():
            answer = Refused("this engine has its worker already", for_now=True)
        else:
            lost = self._epoch is not None
            self._peer, self._epoch = peer, hello.epoch
            answer = self._limits
        self._answer(peer, answer)
        if lost:
            raise WorkerGone("the worker is gone, and another one is there")

    def _answer(self, peer: bytes, message: EngineMessage) -> None:
        with contextlib.suppress(zmq.ZMQError):  # gone already
            self._socket.send_multipart([peer, encode(message)], zmq.DONTWAIT)  # a full peer must not block the loop

    def _reaches_worker(self) -> bool:
        assert self._peer is not None
        try:
            self._socket.send_multipart([self._peer, encode(Ping())], zmq.DONTWAIT)
        except zmq.Again:
            return True  # its queue is full of pings: it is there, but busy
        except zmq.ZMQError:
            return False
        return True

    def _wait(self) -> bool:
        """True when a message is there, False after a wake. Raises WorkerGone."""
        ready = dict(self._poller.poll(PROBE_MS))
        if self._socket in ready:
            return True
        if not ready and self._peer is not None and not self._reaches_worker():
            self.give_up()
            raise WorkerGone("the worker is gone")
        if self._wake_out.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
        return False
