"""The worker's end of the ZeroMQ socket to its engine. Synchronous: one plan comes, one result goes."""

import time

import zmq
import zmq.utils.monitor

from engine_core.step_plan import BadMessage, StepPlan, StepResult
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    ModelFacts,
    Ping,
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
from services.zeromq.socket_options import MAX_PLAN_BYTES, prepare


class EngineGone(Exception):
    """The engine ended, or refuses to go on with this worker."""


class EngineRefused(EngineGone):
    """The engine refused this worker for now; the worker may ask again."""


class EngineLink:
    def __init__(self, endpoint: str, secret: ClusterSecret | None = None, rank: int = 0) -> None:
        """Raises Fatal for an address without protection."""
        secret = check_address(endpoint, secret, ZEROMQ)
        self._rank = rank
        self._epoch = time.time_ns()
        self._answered = False  # by the engine: so both have the same secret
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"rank-{rank}-{self._epoch}".encode())  # never one of the dead
        self._socket.setsockopt(zmq.LINGER, 200)
        prepare(self._socket, MAX_PLAN_BYTES)
        if secret is not None:
            from services.security.curve import configure_client  # imports asyncio

            configure_client(self._socket, secret)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def hello(self) -> None:
        """Says who is there, before the weights are loaded."""
        self._socket.send(encode(WorkerHello(PROTOCOL, self._epoch, self._rank)))

    def limits(self) -> BatchLimits:
        """Waits for the engine's answer. Raises Fatal when it refuses for good, EngineRefused when it does for now."""
        message = self._receive(None)
        if not isinstance(message, BatchLimits):
            raise EngineGone(f"limits expected, {type(message).__name__} came")
        return message

    def register(self, facts: ModelFacts) -> None:
        self._socket.send(encode(Register(self._epoch, facts)))

    def next_plan(self) -> StepPlan:
        """Waits for the next plan of this incarnation."""
        while (plan := self._plan(self._receive(None))) is None:
            pass
        return plan

    def poll_plan(self) -> StepPlan | None:
        """The next plan, if there is one already."""
        return self._plan(self._receive(0))

    def _plan(self, message: BatchLimits | Step | None) -> StepPlan | None:
        """A plan for a dead incarnation is dropped."""
        return message.plan if isinstance(message, Step) and message.plan.epoch == self._epoch else None

    def done(self, result: StepResult) -> None:
        self._socket.send(encode(StepDone(result)))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _receive(self, timeout_ms: int | None) -> BatchLimits | Step | None:
        """The next message that is not a ping; None when the time is over."""
        while True:
            ready = dict(self._poller.poll(timeout_ms))
            if not ready:
                return None
            if self._socket in ready:
                try:
                    message = decode_from_engine(self._socket.recv_multipart())
                    self._answered = True
                except BadMessage as bad:
                    raise EngineRefused(f"the engine breaks the protocol ({bad})") from bad
                if isinstance(message, Refused):
                    why = f"the engine refused this worker: {message.message}"
                    raise EngineRefused(why) if message.for_now else Fatal(why)
                if not isinstance(message, Ping):
                    return message
                continue
            if self._monitor in ready:
                zmq.utils.monitor.recv_monitor_message(self._monitor)
                if self._answered:
                    raise EngineGone("the engine is gone")
                raise EngineRefused("the engine closed the connection unanswered (is its cluster secret another one?)")
