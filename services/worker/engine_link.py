"""The worker's end of the ZeroMQ socket to its engine. Synchronous: receives plans, sends results."""

import time

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
from services.zeromq.frame_sizes import MAX_PLAN_BYTES
from services.zeromq.socket_options import prepare


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
        secret = check_address(endpoint, secret, ZEROMQ)
        self._rank = rank
        self._epoch = time.time_ns()
        self._answered = False  # the engine has sent a message, so both have the same secret
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"rank-{rank}-{self._epoch}".encode())  # never reused
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
        """Sends protocol version, epoch and rank: the first message, sent before the weights are loaded."""
        self._socket.send(encode(WorkerHello(PROTOCOL, self._epoch, self._rank)))

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
        """Sends the model's facts. From now on the engine may send plans."""
        self._socket.send(encode(Register(self._epoch, facts)))

    def next_plan(self) -> StepPlan:
        """Waits for the next plan of this link's epoch and returns it; drops other messages.

        Raises EngineGone for a lost connection, EngineRefused or Fatal if the engine refuses this worker, EngineRefused
        for a malformed message.
        """
        while (plan := self._plan(self._receive(None))) is None:
            pass
        return plan

    def poll_plan(self) -> StepPlan | None:
        """Returns a plan of this link's epoch if that is the next message that has arrived, else None. Does not wait.

        Drops another message. Raises as next_plan does.
        """
        return self._plan(self._receive(0))

    def _plan(self, message: BatchLimits | Step | Prepare | None) -> StepPlan | None:
        """Returns the message's plan; None if it has none, or one of another epoch than this link's."""
        return message.plan if isinstance(message, Step) and message.plan.epoch == self._epoch else None

    def done(self, result: StepResult) -> None:
        """Sends the result of a step."""
        self._socket.send(encode(StepDone(result)))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _receive(self, timeout_ms: int | None) -> BatchLimits | Step | Prepare | None:
        """Returns the next message that is not a ping; None after `timeout_ms` (None: waits without limit).

        Raises EngineGone if the connection is lost, EngineRefused or Fatal if the engine refuses this worker. Raises
        EngineRefused also for a malformed message and for a connection closed before the engine's first message.
        """
        while True:
            ready = dict(self._poller.poll(timeout_ms))
            if not ready:
                return None
            if self._socket in ready:
                try:
                    message = decode_from_engine(self._socket.recv_multipart())
                    self._answered = True
                except BadMessage as bad:
                    raise EngineRefused(f"malformed message from the engine: {bad}") from bad
                if isinstance(message, Refused):
                    why = f"the engine refused this worker: {message.message}"
                    raise EngineRefused(why) if message.for_now else Fatal(why)
                if not isinstance(message, Ping):
                    return message
                continue
            if self._monitor in ready:
                zmq.utils.monitor.recv_monitor_message(self._monitor)
                if self._answered:
                    raise EngineGone("lost the connection to the engine")
                raise EngineRefused(
                    "the engine closed the connection without an answer: check that both have the same cluster secret"
                )
