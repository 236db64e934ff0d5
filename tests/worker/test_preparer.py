"""The preparer's thread over real sockets: it answers each Prepare, ends with its link, and its errors end it too."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.step_plan import NewRequest, SamplingParams, StepPlan, pack_i32
from engine_core.worker_messages import PROTOCOL, Ping, Prepare, Prepared, PreparerHello, Refused
from services.grammar.matcher import Matcher
from services.worker.checkpoint import read_checkpoint
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused
from services.worker.grammar_source import GrammarSource
from services.worker.prepared_grammars import PreparedGrammars
from services.worker.preparer import Preparer, PreparerFailed, socket_pair
from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.grammar.vocabularies import ids_of
from tests.worker.engine_by_hand import TIMEOUT_MS, EngineSocket

DIGITS = "start: /[0-9]+/"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> "Signalling":
    path = make_qwen3(tmp_path_factory.mktemp("model"))
    return Signalling(read_checkpoint(path, {}, "auto"), DEMO_VOCAB_SIZE)


@pytest.fixture
def engine(socket_dir: Path) -> Iterator[EngineSocket]:
    socket = EngineSocket(f"ipc://{socket_dir}/engine")
    yield socket
    socket.close()


@pytest.fixture
def link(socket_dir: Path, engine: EngineSocket) -> Iterator[EngineLink]:
    connected = EngineLink(f"ipc://{socket_dir}/engine")
    yield connected
    connected.close()


@pytest.fixture
def grammars() -> PreparedGrammars:
    return PreparedGrammars(4)


@pytest.fixture
def preparer(link: EngineLink, source: GrammarSource, grammars: PreparedGrammars) -> Iterator[Preparer]:
    started = Preparer(link, source, grammars)
    yield started
    started.close()


def prepare(link: EngineLink, handle: int, grammar: str, output: str = "") -> Prepare:
    return Prepare(link.epoch, handle, grammar, pack_i32(ids_of(output)) if output else b"")


def plan(*new: NewRequest) -> StepPlan:
    return StepPlan(1, 1, None, [], list(new), b"", b"", b"", b"", b"", [b""], [b""])


def test_it_says_hello_on_a_connection_of_its_own(engine: EngineSocket, link: EngineLink, preparer: Preparer) -> None:
    assert engine.receive() == PreparerHello(PROTOCOL, link.epoch)
    thread = engine.peer
    link.hello()
    engine.receive()
    assert engine.peer != thread


def test_a_prepared_grammar_can_be_admitted(
    engine: EngineSocket, link: EngineLink, preparer: Preparer, grammars: PreparedGrammars
) -> None:
    engine.receive()
    for message in (Ping(), prepare(link, 7, DIGITS, "42"), prepare(link, 8, 'start: "7"', "7")):
        engine.send(message)
    assert engine.receive() == Prepared(link.epoch, 7)
    assert engine.receive() == Prepared(link.epoch, 8, is_complete=True)
    sampling, output = SamplingParams(max_tokens=9), pack_i32(ids_of("42"))
    grammars.apply(plan(NewRequest(7, 0, pack_i32([1]), output, [], sampling, 0, 0, has_grammar=True)))
    assert len(grammars) == 2


@pytest.mark.parametrize(
    ("grammar", "output", "error"),
    [("start: b", "", "the grammar: .*b"), (DIGITS, "x", "the grammar: "), ("start: (", "", "the grammar: ")],
    ids=["unknown rule", "output that does not follow it", "malformed"],
)
def test_a_grammar_that_cannot_be_used_is_answered_with_its_error(
    engine: EngineSocket, link: EngineLink, preparer: Preparer, grammars: PreparedGrammars, grammar: str, output: str,
    error: str,
) -> None:  # fmt: skip
    engine.receive()
    engine.send(prepare(link, 7, grammar, output))
    answer = engine.receive()
    assert answer.handle == 7 and answer.error.startswith("the grammar: ") and "\n" not in answer.error
    engine.send(prepare(link, 8, DIGITS))
    assert engine.receive() == Prepared(link.epoch, 8), "the thread goes on"
    assert len(grammars) == 1


def test_a_vocabulary_without_grammars_answers_each_with_the_reason(
    engine: EngineSocket, link: EngineLink, grammars: PreparedGrammars, tmp_path: Path
) -> None:
    path = make_qwen3(tmp_path / "model")
    (path / "tokenizer.json").unlink()
    preparer = Preparer(link, GrammarSource(read_checkpoint(path, {}, "auto"), DEMO_VOCAB_SIZE), grammars)
    try:
        engine.receive()
        engine.send(prepare(link, 7, DIGITS))
        assert "tokenizer.json does not support grammars" in engine.receive().error
    finally:
        preparer.close()


def test_another_epochs_request_is_dropped(engine: EngineSocket, link: EngineLink, preparer: Preparer) -> None:
    engine.receive()
    engine.send(Prepare(link.epoch - 1, 7, DIGITS, b""))
    engine.send(prepare(link, 8, DIGITS))
    assert engine.receive().handle == 8


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Refused("another epoch"), EngineRefused, "refused this worker: another epoch"),
        (b"\xc1", EngineRefused, "malformed message"),
        (Prepare(0, 7, DIGITS, b"123"), PreparerFailed, "has failed"),
    ],
    ids=["refused", "malformed", "unexpected"],
)
def test_the_link_raises_the_threads_error(
    engine: EngineSocket, link: EngineLink, preparer: Preparer, message: Any, error: type[Exception], text: str
) -> None:
    engine.receive()
    if isinstance(message, Prepare):
        message.epoch = link.epoch
    engine.send(message)
    with pytest.raises(error, match=text):
        link.next_plan()


def test_an_engine_that_ends_ends_both(engine: EngineSocket, link: EngineLink, preparer: Preparer) -> None:
    engine.receive()
    link.hello()
    engine.receive()
    engine.close()
    with pytest.raises(EngineGone):
        link.next_plan()


def test_grammars_are_freed_with_their_engine(engine: EngineSocket, socket_dir: Path, source: GrammarSource) -> None:
    """At once: a worker makes so few objects that the garbage collector hardly ever runs."""
    link, grammars = EngineLink(f"ipc://{socket_dir}/engine"), PreparedGrammars(4)
    preparer, kept = Preparer(link, source, grammars), weakref.ref(grammars)
    engine.receive()
    engine.send(prepare(link, 7, DIGITS))
    engine.receive()
    gc.disable()
    try:
        engine.send(b"\xc1")
        with pytest.raises(EngineRefused):
            link.next_plan()
        preparer.close()
        link.close()
        del grammars, preparer, link
        assert kept() is None
    finally:
        gc.enable()


class Signalling(GrammarSource):
    """Tells when a grammar is being prepared."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.began = threading.Event()

    def matcher(self, grammar: str) -> Matcher:
        self.began.set()
        return super().matcher(grammar)


def test_close_does_not_wait_for_a_long_replay(
    engine: EngineSocket, link: EngineLink, source: Signalling, grammars: PreparedGrammars
) -> None:
    """The replay would take about half a minute."""
    preparer = Preparer(link, source, grammars)
    engine.receive()
    engine.send(Prepare(link.epoch, 7, DIGITS, pack_i32(ids_of("4") * 2_000_000)))
    assert source.began.wait(TIMEOUT_MS / 1000)
    preparer.close()
    assert len(grammars) == 0


def test_pairs_of_sockets_follow_each_other_at_once() -> None:
    """ZeroMQ frees an endpoint a moment after its socket is closed, and Python uses the addresses of objects again."""
    for _ in range(500):
        for end in socket_pair():
            end.close()
