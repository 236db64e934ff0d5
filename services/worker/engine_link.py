"""The worker's end of the ZeroMQ socket to its engine. Synchronous: receives plans, sends results."""

import time
from collections.abc import Callable
from typing import NoReturn

import zmq
import zmq.utils.monitor

from engine_core.step_plan import BadMessage, StepPlan, StepResult
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    ModelFacts,
    Ping,
    Prepare,
    Refused,
    Register,
    Step,
    StepDone,
    WorkerHello,
    decode_from_engine,
    encode,
)
from services.errors import Fatal
from services.security.addresses import ZEROMQ, check_address
from services.security.secret import ClusterSecret
from services.worker.engine_socket import EngineSocket, Socket


class EngineGone(Exception):
    """The connection to the engine is lost, or its messages do not follow the protocol: the worker connects again."""


class EngineRefused(EngineGone):
    """The worker may connect again after a pause: the engine refused it for now, sent a malformed message, or closed
    the connection without an answer."""


class EngineLink:
    def __init__(self, endpoint: str, secret: ClusterSecret | None = None, rank: int = 0) -> None:
        """Starts to connect to the engine at `endpoint`, a ZeroMQ address (ipc:// or tcp://); does not wait for it.

        Raises Fatal for TCP without a secret, and for a Unix socket that check_address refuses.
        """
        self._endpoint = endpoint
        self._secret = check_address(endpoint, secret, ZEROMQ)
        self._rank = rank
        self.epoch = time.time_ns()
        self.is_registered = False
        self._answered = False  # the engine has sent a message, so both have the same secret
        self._engine = EngineSocket(endpoint, self._secret, f"rank-{rank}-{self.epoch}")
        self._socket = self._engine.messages
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._engine.losses, zmq.POLLIN)
        self._watched: tuple[Socket, Callable[[], None]] | None = None

    def second_socket(self) -> EngineSocket:
        """Starts to connect to the same engine once more: the connection of the preparer's thread."""
        return EngineSocket(self._endpoint, self._secret, f"preparer-{self._rank}-{self.epoch}")

    def watch(self, socket: Socket, check: Callable[[], None]) -> None:
        """Calls `check` when `socket` is readable and a message is waited for; it raises what the link then raises."""
        self._watched = socket, check
        self._poller.register(socket, zmq.POLLIN)

    def hello(self, *, is_intact: bool = False) -> None:
        """Sends protocol version, epoch and rank: the first message, sent before the weights are loaded. `is_intact`:
        see WorkerHello."""
        self._socket.send(encode(WorkerHello(PROTOCOL, self.epoch, self._rank, is_intact)))

    def limits(self) -> BatchLimits:
        """Waits for the engine's batch limits and returns them.

        Raises Fatal for a lasting refusal. Raises EngineRefused for a temporary one, a malformed message, or a
        connection closed without an answer. Raises EngineGone for a lost connection or another message.
        """
        message = self._receive(None)
        if not isinstance(message, BatchLimits):
            raise EngineGone(f"expected BatchLimits from the engine, received {type(message).__name__}")
        return message

    def register(self, facts: ModelFacts) -> None:
        """Sends the model's facts. From now on the engine may send plans. Raises EngineGone if the connection is lost:
        ZeroMQ would send them to the next engine, which does not know this worker."""
        if self._engine.losses.poll(0):
            self._lost()
        self._socket.send(encode(Register(self.epoch, facts)))
        self.is_registered = True

    def next_plan(self) -> StepPlan:
        """Waits for the next plan of this link's epoch and returns it; drops other messages.

        Raises EngineGone for a lost connection, EngineRefused or Fatal if the engine refuses this worker, EngineRefused
        for a malformed message.
        """
        while (plan := self._plan(self._receive(None))) is None:
            pass
        return plan

    def poll_plan(self, timeout_ms: int = 0) -> StepPlan | None:
        """Returns a plan of this link's epoch if that is the next message within `timeout_ms`, else None.

        Drops another message. Raises as next_plan does.
        """
        return self._plan(self._receive(timeout_ms))

    def _plan(self, message: BatchLimits | Step | Prepare | None) -> StepPlan | None:
        """Returns the message's plan; None if it has none, or one of another epoch than this link's."""
        return message.plan if isinstance(message, Step) and message.plan.epoch == self.epoch else None

    def done(self, result: StepResult) -> None:
        """Sends the result of a step."""
        self._socket.send(encode(StepDone(result)))

    def close(self) -> None:
        self._engine.close()

    def _receive(self, timeout_ms: int | None) -> BatchLimits | Step | Prepare | None:
        """Returns the next message that is not a ping; None after a ping or `timeout_ms` (None: waits without limit).

        Raises EngineGone if the connection is lost, EngineRefused or Fatal if the engine refuses this worker. Raises
        EngineRefused also for a malformed message and for a connection closed before the engine's first message. Raises
        what the watched socket's check raises.
        """
        while True:
            ready = dict(self._poller.poll(timeout_ms))
            if not ready:
                return None
            if self._engine.losses in ready:  # the messages may be the lost engine's, or the next one's refusal
                self._lost()
            if self._watched is not None and self._watched[0] in ready:
                self._watched[1]()
            if self._socket in ready:
                message = received(self._engine)
                self._answered = True
                if not isinstance(message, Ping):
                    return message
                if timeout_ms is not None:
                    return None  # pings must not keep the caller here
                continue

    def _lost(self) -> NoReturn:
        """Raises EngineGone if the engine has sent a message, read or not, else EngineRefused."""
        zmq.utils.monitor.recv_monitor_message(self._engine.losses)
        if self._answered or self._socket.poll(0):
            raise EngineGone("lost the connection to the engine")
        raise EngineRefused(
            "the engine closed the connection without an answer: check that both have the same cluster secret"
        )


def received(socket: EngineSocket) -> BatchLimits | Step | Ping | Prepare:
    """Returns the next message, which has arrived.

    Raises EngineRefused if it is malformed, EngineRefused or Fatal if the engine refuses this worker.
    """
    try:
        message = decode_from_engine(socket.messages.recv_multipart())
    except BadMessage as bad:
        raise EngineRefused(f"malformed message from the engine: {bad}") from bad
    if isinstance(message, Refused):
        why = f"the engine refused this worker: {message.message}"
        raise EngineRefused(why) if message.for_now else Fatal(why)
    return message
