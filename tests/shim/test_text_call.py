"""TextCall: what of the tokenizer's messages reaches the mailbox, and what a resume sends again."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.call import StreamBroken
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, unpacked
from services.shim.metrics import ShimMetrics
from services.shim.telemetry import RequestTelemetry
from services.shim.text_call import TextCall
from services.shim.updates import UpdateMailbox
from services.telemetry.spans import NO_SPAN

OTHER = 7


class Started:
    """A call with two choices, handles 10 and 11, whose HTTP request has three choices before them."""

    def __init__(self, **fields: Any) -> None:
        self.registry = CollectorRegistry()
        self.updates = UpdateMailbox()
        choices = [pb.Choice(handle=10, choice=0), pb.Choice(handle=11, choice=1)]
        submit = text_pb2.TextSubmit(choices=choices, **fields)
        telemetry = RequestTelemetry("r", ShimMetrics(self.registry).of("m"), NO_SPAN)
        telemetry.submitted(5)
        self.call = TextCall(submit, 3, self.updates, telemetry)
        self.next_submit()

    def next_submit(self) -> text_pb2.TextSubmit:
        submit: text_pb2.TextSubmit = self.call.next_submit(alone=False, on_cleared=lambda: None)
        return submit

    def accept(self, handle: int, **fields: Any) -> None:
        self.call.on_accepted(text_pb2.TextAccepted(handle=handle, **fields))

    def row(self, handle: int, start: int, ids: list[int], *pieces: str, kinds: bytes = b"") -> None:
        self.call.on_row(handle, start, pack_u32(ids), unpacked(pieces, kinds), ())


def test_rows_reach_the_choice_of_their_handle() -> None:
    started = Started()
    started.row(11, 0, [1], "a", "x", kinds=bytes([CONTENT, OTHER]))
    started.row(11, 1, [2, 3], "b")
    update = started.updates.pending(4)
    assert update.pieces == [(CONTENT, "a"), (OTHER, "x"), (CONTENT, "b")]
    assert unpack_u32(update.token_ids) == [1, 2, 3]


def test_a_repeated_row_changes_nothing() -> None:
    started = Started()
    for _ in range(2):
        started.row(10, 0, [1, 2], "ab")
    assert started.updates.pending(3).pieces == [(CONTENT, "ab")]


@pytest.mark.parametrize(("start", "reason"), [(1, "handle 10: only 1 of the row's tokens"), (3, "expected token 2")])
def test_a_row_that_cannot_be_used_breaks_the_stream(start: int, reason: str) -> None:
    started = Started()
    started.row(10, 0, [1, 2], "ab")
    with pytest.raises(StreamBroken, match=reason):
        started.row(10, start, [2, 3], "bc")


def test_the_first_acceptance_counts() -> None:
    started = Started()
    assert (started.call.num_prompt_tokens, started.call.sampling, started.call.seed) == (0, None, 0)
    sampling = pb.SamplingParams(temperature=0.5)
    started.accept(10, prompt_token_ids=pack_u32([4, 5]), seed=9, cached_tokens=1, sampling=sampling)
    started.accept(11, seed=9, cached_tokens=2)
    started.accept(10, seed=9)
    assert unpack_u32(started.call.prompt_token_ids) == [4, 5] and started.call.num_prompt_tokens == 2
    assert started.call.sampling == sampling and started.call.seed == 9
    labels = {"model_name": "m", "engine": "0"}
    assert started.registry.get_sample_value("vllm:prompt_tokens_total", labels) == 2, "counted once"


def test_prompt_ids_that_the_shim_sent() -> None:
    """The tokenizer does not send them back."""
    started = Started(prompt_token_ids=pack_u32([4, 5, 6]))
    assert started.call.num_prompt_tokens == 3
    started.accept(10, seed=9)
    assert unpack_u32(started.call.prompt_token_ids) == [4, 5, 6]
    assert unpack_u32(started.next_submit().prompt_token_ids) == [4, 5, 6]


def test_a_resume_sends_what_was_accepted() -> None:
    """Prompt ids take the place of the messages; the output specification stays."""
    output = text_pb2.OutputSpec(stop=["END"], tools_json=b"[]", bad_words=["no"])
    started = Started(
        chat=text_pb2.ChatInput(messages_json=b"[]"),
        output=output,
        truncation=text_pb2.Truncation(max_tokens=2),
        return_sampling=True,
    )
    resolved = text_pb2.ResolvedOutput(bad_words_token_ids=[pack_u32([1, 2])])
    started.accept(10, prompt_token_ids=pack_u32([4, 5]), seed=9, resolved=resolved)
    started.row(10, 0, [1, 2], "ab")
    submit = started.next_submit()
    assert submit.WhichOneof("input") == "prompt_token_ids" and unpack_u32(submit.prompt_token_ids) == [4, 5]
    assert (submit.attempt, submit.seed, submit.output) == (2, 9, output)
    assert [unpack_u32(choice.resumed_token_ids) for choice in submit.choices] == [[1, 2], []]
    assert submit.resolved == resolved


def test_the_end_of_a_choice() -> None:
    started = Started()
    started.row(10, 0, [1], "a")
    terminal = text_pb2.TextTerminal(handle=10, reason=pb.FINISH_REASON_STOP, pieces=["b", "x"], piece_kinds=b"\0\7")
    started.call.end(10)
    started.call.on_terminal(terminal)
    update = started.updates.pending(3)
    assert update.pieces == [(CONTENT, "ab"), (OTHER, "x")] and update.terminal == terminal


def test_fail_ends_every_open_choice() -> None:
    started = Started()
    started.call.end(10)
    started.call.fail(unavailable("no tokenizer"))
    with pytest.raises(TandemError, match="no tokenizer"):
        started.updates.check()
    assert not started.call.open_choices and started.updates.pending(3).terminal is None


def test_an_interrupt_leaves_the_choices_open() -> None:
    started = Started()
    started.call.interrupt(unavailable("the server is stopping"))
    assert len(started.call.open_choices) == 2
    for index in (3, 4):
        terminal = started.updates.pending(index).terminal
        assert terminal is not None and terminal.error.message == "the server is stopping"
