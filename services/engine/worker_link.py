"""The engine's end of the ZeroMQ socket to its worker. Synchronous, used by the busy loop's thread alone.

Only `wake()` may be called from another thread; it ends a wait. The worker has a second socket, its preparer's, which
is known by its own hello. Of other peers, only a hello counts: it is answered or refused. Their other messages are
refused, or dropped if malformed.
"""

import contextlib
import logging
import socket
from typing import NoReturn

import msgspec
import zmq

from engine_core.request import Request
from engine_core.step_plan import BadMessage, StepPlan, StepResult, pack_i32
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    EngineMessage,
    ModelFacts,
    Ping,
    Prepare,
    Prepared,
    PreparerHello,
    Refused,
    Register,
    Step,
    StepDone,
    WorkerHello,
    WorkerMessage,
    decode_from_worker,
    encode,
)
from services.engine.preparer import Preparer
from services.security.addresses import ZEROMQ, check_address
from services.security.curve import CurveAuthenticator
from services.security.secret import ClusterSecret
from services.telemetry.logs import RateLimitedLog
from services.zeromq.frame_sizes import MAX_RESULT_BYTES
from services.zeromq.socket_options import prepare as set_options

log = logging.getLogger(__name__)
PROBE_MS = 500  # interval at which a waiting engine pings its worker


class WorkerGone(Exception):
    """The worker is lost, with its KV cache and the steps in flight. No plan is made until the next one registers."""


class WorkerLink:
    def __init__(self, endpoint: str, limits: BatchLimits, secret: ClusterSecret | None = None) -> None:
        """Binds the endpoint; `limits` answer a worker's hello. `secret`: for CURVE over TCP; ipc:// does not use it.

        Raises zmq.ZMQError when the endpoint cannot be bound. Raises Fatal for TCP without a secret, and for a socket
        that is not in a directory of this user with mode 0700.
        """
        secret = check_address(endpoint, secret, ZEROMQ)
        self._limits = limits
        self._unknown_peers = RateLimitedLog(log, logging.WARNING)
        self._peer: bytes | None = None  # routing id of the worker, from its hello on
        self._epoch: int | None = None
        self.is_intact = False  # the present worker is the last one, which only lost its connection
        self.preparer: Preparer | None = None  # of the present worker, from its hello on
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
        set_options(self._socket, MAX_RESULT_BYTES)
        if secret is not None:
            self._authenticator = CurveAuthenticator(secret, self._context)
            self._authenticator.configure_server(self._socket)
        self._socket.bind(endpoint)

    def wake(self) -> None:
        """Ends the busy loop's wait for a message. May be called from any thread."""
        with contextlib.suppress(OSError):  # full of unread wakes, or closed
            self._wake_in.send(b"\0")

    def poll_registration(self) -> Register | None:
        """Waits for a message or wake, PROBE_MS at most. Returns a Register message, else None. Raises WorkerGone."""
        message = self._next_message()
        return message if isinstance(message, Register) else None

    def accept(self, facts: ModelFacts) -> None:
        """Takes a registration. Later workers are told the size of the first one's KV cache."""
        kv_cache = self._limits.kv_cache or facts.kv_cache_size
        self._limits = msgspec.structs.replace(self._limits, kv_cache=kv_cache)

    def send(self, plan: StepPlan) -> None:
        """Sends a plan. Raises WorkerGone when the worker is no longer connected.

        ZeroMQ forgets the routing id of a peer that closed its socket or stopped sending heartbeats.
        """
        assert self._peer is not None
        self._send(self._peer, Step(plan))

    def prepare(self, request: Request) -> None:
        """Asks the preparer to prepare a request. Raises WorkerGone when it is no longer connected."""
        assert self.preparer is not None and self._epoch is not None
        output = pack_i32(request.output_token_ids)
        self._send(self.preparer.peer, Prepare(self._epoch, request.handle, request.grammar, output))
        self.preparer.asked()

    def _send(self, peer: bytes, message: EngineMessage) -> None:
        try:
            self._socket.send_multipart([peer, encode(message)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self.drop_worker()
            raise WorkerGone("the worker is no longer connected") from error

    def poll_result(self) -> StepResult | None:
        """Waits for a message or wake, PROBE_MS at most. Returns a result of the present worker, else None.

        Any other message of the worker is dropped. Raises WorkerGone.
        """
        message = self._next_message()
        if isinstance(message, StepDone) and message.result.epoch == self._epoch:
            return message.result
        return None

    def drop_worker(self) -> None:
        """Forgets the worker; if it still runs, its messages are refused, and another worker may say hello."""
        self._peer = self._epoch = self.preparer = None

    def refuse(self, reason: str, fault: str = "breaks the protocol") -> NoReturn:
        """Sends the reason to a worker that broke the protocol, or has another `fault`, and drops it. Raises
        WorkerGone."""
        assert self._peer is not None
        self._answer(self._peer, Refused(reason, for_now=True))
        self.drop_worker()
        raise WorkerGone(f"the worker {fault} ({reason})")

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        self._wake_in.close()
        self._wake_out.close()

    def _next_message(self) -> WorkerMessage | None:
        """Waits for a message or a wake, PROBE_MS at most. Returns a message of the worker, else None.

        Answers hellos, keeps what the preparer sends, and refuses other peers itself. Raises WorkerGone if the worker
        is lost or replaced, or sends a malformed message.
        """
        if not self._wait():
            return None
        peer, *frames = self._socket.recv_multipart()
        try:
            message = decode_from_worker(frames)
        except BadMessage as bad:
            if peer == self._peer or self._is_preparer(peer):
                self.refuse(str(bad))
            self._unknown_peers.log("dropped a malformed message of an unknown peer on the worker socket: %s", bad)
            return None
        if isinstance(message, WorkerHello):
            self._answer_hello(peer, message)
            return None
        if peer == self._peer:
            return message
        if self._is_preparer(peer):
            self._keep_answer(message)
        elif isinstance(message, PreparerHello) and self._fits(message):
            self.preparer = Preparer(peer)
        else:
            self._answer(peer, Refused("this engine has dropped this worker"))
        return None

    def _is_preparer(self, peer: bytes) -> bool:
        return self.preparer is not None and peer == self.preparer.peer

    def _fits(self, hello: PreparerHello) -> bool:
        """Returns whether the present worker, and no other, has sent this hello, and has no preparer yet."""
        return hello.protocol == PROTOCOL and hello.epoch == self._epoch and self.preparer is None

    def _keep_answer(self, message: WorkerMessage) -> None:
        """Keeps an answer of the preparer. Raises WorkerGone for any other message."""
        if not isinstance(message, Prepared) or message.epoch != self._epoch:
            self.refuse(f"the preparer sent {type(message).__name__}, or the answer of another worker")
        assert self.preparer is not None
        self.preparer.answered(message)

    def _answer_hello(self, peer: bytes, hello: WorkerHello) -> None:
        replaced = False
        if hello.protocol != PROTOCOL:
            answer: EngineMessage = Refused(f"the engine has protocol {PROTOCOL}, the worker {hello.protocol}")
        elif self._epoch is not None and self._reaches_worker():
            answer = Refused("this engine already has a worker", for_now=True)
        else:
            replaced = self._epoch is not None
            self.drop_worker()
            self._peer, self._epoch, self.is_intact = peer, hello.epoch, hello.is_intact
            answer = self._limits
        self._answer(peer, answer)
        if replaced:
            raise WorkerGone("the worker is gone, and another one has connected")

    def _answer(self, peer: bytes, message: EngineMessage) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone
            self._socket.send_multipart(
                [peer, encode(message)], zmq.DONTWAIT
            )  # a peer that does not read must not block the loop

    def _reaches_worker(self) -> bool:
        """Pings the worker; returns whether it is still connected."""
        assert self._peer is not None
        try:
            self._socket.send_multipart([self._peer, encode(Ping())], zmq.DONTWAIT)
        except zmq.Again:
            return True  # its queue is full of pings: connected, but busy
        except zmq.ZMQError:
            return False
        return True

    def _wait(self) -> bool:
        """Waits PROBE_MS at most. Returns whether a message has arrived. Raises WorkerGone if the worker is lost."""
        ready = dict(self._poller.poll(PROBE_MS))
        if self._socket in ready:
            return True
        if not ready and self._peer is not None and not self._reaches_worker():
            self.drop_worker()
            raise WorkerGone("the worker is no longer connected")
        if self._wake_out.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
        return False
