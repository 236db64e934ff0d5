"""The thread that prepares grammars while their requests wait: it compiles them, and goes on over the output so far.

It has its own connection to the engine and a deep stack. It ends with `close`, or with an error, which the thread that
runs plans raises: the engine is gone, or the worker crashes. It knows nothing of slots and steps.
"""

import itertools
import threading
from collections.abc import Iterator

import zmq

from engine_core.step_plan import unpack_i32
from engine_core.worker_messages import PROTOCOL, BatchLimits, Ping, Prepare, PreparerHello, Step, encode
from services.errors import Fatal
from services.grammar.deep_stack import start_deep
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused, received
from services.worker.engine_socket import Socket
from services.worker.grammar_source import GrammarSource, prepare
from services.worker.prepared_grammars import PreparedGrammars

_numbers = itertools.count()  # of pairs: the endpoint of a closed one stays in use for a moment


class PreparerFailed(Exception):
    """The thread ended with an unexpected error, which is the cause of this one."""


class _Closed(Exception):
    """`close` was called."""


class Preparer:
    def __init__(self, link: EngineLink, source: GrammarSource, grammars: PreparedGrammars) -> None:
        """Starts the thread, which connects to the link's engine. The link raises the thread's errors from now on."""
        self._epoch = link.epoch
        self._source = source
        self._grammars = grammars
        self._engine = link.second_socket()  # the thread's own from its start on
        # Their messages have no content: the thread has failed; the thread is to end.
        self._control, self._inner = socket_pair()
        self._failure: BaseException | None = None
        self._closed = threading.Event()
        link.watch(self._control, self._raise_failure)
        self._thread = start_deep(self._run, "preparer")

    def close(self) -> None:
        """Ends the thread; waits at most for the grammar that it compiles, which has a limit."""
        self._closed.set()
        self._control.send(b"")
        self._thread.join()
        self._failure = None  # its traceback keeps this object: the grammars would stay until a full garbage collection
        self._control.close()
        self._inner.close()

    def _raise_failure(self) -> None:
        failure = self._failure
        if isinstance(failure, EngineGone):
            raise type(failure)(*failure.args)  # a new one: the traceback of a kept one would keep the KV cache
        raise PreparerFailed("the thread that prepares grammars has failed") from failure

    def _run(self) -> None:
        try:
            self._serve()
        except _Closed:
            pass
        except BaseException as failure:
            self._failure = failure
            self._inner.send(b"")
        finally:
            self._engine.close()

    def _serve(self) -> None:
        """Answers the engine's messages. Raises EngineGone, EngineRefused, and _Closed."""
        poller = zmq.Poller()
        for socket in (self._engine.messages, self._engine.losses, self._inner):
            poller.register(socket, zmq.POLLIN)
        self._engine.messages.send(encode(PreparerHello(PROTOCOL, self._epoch)))
        while True:
            ready = dict(poller.poll())
            if self._inner in ready:
                raise _Closed
            if self._engine.losses in ready:
                raise EngineGone("lost the preparer's connection to the engine")
            if self._engine.messages in ready:
                message = self._received()
                if isinstance(message, Prepare) and message.epoch == self._epoch:
                    output = self._until_closed(unpack_i32(message.output_token_ids).tolist())
                    answer = prepare(message, self._source, self._grammars, output)
                    self._engine.messages.send(encode(answer))

    def _received(self) -> BatchLimits | Step | Ping | Prepare:
        try:
            return received(self._engine)
        except Fatal as refused:  # perhaps by the next engine: whether the worker must end, its link finds out
            raise EngineRefused(*refused.args) from refused

    def _until_closed(self, token_ids: list[int]) -> Iterator[int]:
        """Yields the ids. Raises _Closed: a long output takes seconds."""
        for token_id in token_ids:
            if self._closed.is_set():
                raise _Closed
            yield token_id


def socket_pair() -> tuple[Socket, Socket]:
    """Returns two connected sockets, for two threads."""
    context: zmq.Context[Socket] = zmq.Context.instance()
    ends = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    endpoint = f"inproc://preparer-{next(_numbers)}"
    ends[0].bind(endpoint)
    ends[1].connect(endpoint)
    for end in ends:
        end.setsockopt(zmq.LINGER, 0)
    return ends
