"""How the responses of one program's call merge and end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc import response_mailbox
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.response_mailbox import ResponseMailbox


class Responses(ResponseMailbox[engine_pb2.GenerateTokensResponse]):
    """Responses with the tokens that a test puts."""

    def __init__(self, num_choices: int = 1, *, stream: bool = True) -> None:
        super().__init__(engine_pb2.GenerateTokensResponse, stream=stream)
        self.expect(pb.Choice(handle=index) for index in range(num_choices))

    def put(self, index: int, *token_ids: int) -> None:
        self.delta(index).token_ids.extend(token_ids)
        self.changed(len(token_ids))

    def finish(self, index: int, output_tokens: int, **more: Any) -> None:
        reason = pb.FINISH_REASON_ERROR if "error" in more else pb.FINISH_REASON_LENGTH
        self.delta(index).finish_reason = reason
        counts = {"prompt_tokens": 4, "cached_tokens": index, "output_tokens": output_tokens}
        self.end(engine_pb2.Terminal(handle=index, reason=reason, **counts, **more))

    @property
    def is_ready(self) -> bool:
        return self._wake.is_set()


def test_what_waits_merges_into_one_response() -> None:
    responses = Responses(2)
    started: Any = responses.started()
    started.seed = 5
    assert responses.started() is None and not responses.is_ready
    responses.put(1, 10)
    responses.put(0, 20)
    responses.put(1, 11)
    first = responses.take()
    assert first.started.seed == 5
    assert [(one.index, list(one.token_ids)) for one in first.choices] == [(1, [10, 11]), (0, [20])]
    responses.finish(1, 2)
    assert not responses.take().HasField("usage")
    responses.finish(0, 1)
    last = responses.take()
    assert (last.usage.prompt_tokens, last.usage.output_tokens, last.usage.cached_tokens) == (4, 3, 0)
    assert responses.is_done


def test_a_whole_answer_is_one_response() -> None:
    responses = Responses(2, stream=False)
    responses.put(1, 3)
    responses.finish(1, 1)
    assert not responses.is_ready
    responses.put(0, 1, 2)
    responses.finish(0, 2)
    assert responses.is_ready
    whole = responses.take()
    assert [list(one.token_ids) for one in whole.choices] == [[1, 2], [3]]
    assert whole.usage.output_tokens == 3 and responses.is_done


def test_an_error_ends_the_call() -> None:
    for stream in (True, False):
        responses = Responses(2, stream=stream)
        responses.finish(0, 0, error=invalid("no", "n").to_proto())
        assert responses.is_ready
        with pytest.raises(TandemError, match="no"):
            responses.take()


def test_a_whole_answer_too_large_for_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_mailbox, "MAX_MESSAGE_BYTES", 100)
    responses = Responses(stream=False)
    responses.put(0, *range(1000))
    responses.finish(0, 1000)
    with pytest.raises(TandemError, match="set stream") as refused:
        responses.take()
    assert refused.value.param == "stream"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), max_size=30))
def test_any_order_of_puts_and_takes_gives_the_same_answer(steps: list[tuple[int, int, bool]]) -> None:
    """Responses have a limit of entries; whenever they are taken, the deltas of a choice join to its tokens."""
    responses, sent, received = Responses(3), {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}  # type: ignore[var-annotated]
    limit, response_mailbox.MAX_ENTRIES = response_mailbox.MAX_ENTRIES, 50
    try:

        def take() -> None:
            response = responses.take()
            assert response.ByteSize() > 0, "no response is empty"
            assert sum(len(one.token_ids) for one in response.choices) < 50 + 40
            for one in response.choices:
                received[one.index] += one.token_ids

        for index, count, is_taken in steps:
            responses.put(index, *range(count))
            sent[index] += range(count)
            if responses.is_ready and is_taken:
                responses._wake.clear()
                take()
        for index in range(3):
            responses.finish(index, len(sent[index]))
        while not responses.is_done:
            take()
    finally:
        response_mailbox.MAX_ENTRIES = limit
    assert received == sent
