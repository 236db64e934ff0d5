"""Wherever calls end, the responses that a program gets are those of one call, and the request resumes what is open."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.progress import Progress, Whole

STARTED = text_pb2.TextStarted(seed=7, prompt_token_ids=[1, 2], cached_tokens=1, numerics_id="a")
answers = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=3)


def responses_of(ids: list[list[int]], request: text_pb2.GenerateTextRequest) -> list[text_pb2.GenerateTextResponse]:
    """Returns what a tokenizer sends: one token of each open choice per message, after `started`, then the usage."""
    resumed = {choice.index: len(choice.token_ids) for choice in request.resume.choices}
    at = resumed or dict.fromkeys(range(request.n), 0)
    for choice in request.resume.choices:
        assert list(choice.token_ids) == ids[choice.index][: len(choice.token_ids)]
    assert not request.resume.HasField("started") or request.resume.started == STARTED
    found = [text_pb2.GenerateTextResponse(started=STARTED)]
    usage = sum(len(ids[index]) for index in at)
    while at:
        message = text_pb2.GenerateTextResponse()
        for index, position in list(at.items()):
            delta = message.choices.add(index=index)
            if position < len(ids[index]):
                delta.token_ids.append(ids[index][position])
                delta.pieces.add(text=str(ids[index][position]))
                at[index] += 1
            if at[index] == len(ids[index]):
                delta.finish_reason = pb.FINISH_REASON_LENGTH
                del at[index]
        found.append(message)
    found[-1].usage.CopyFrom(pb.Usage(prompt_tokens=2, output_tokens=usage, cached_tokens=1))
    return found


def whole_of(responses: list[text_pb2.GenerateTextResponse]) -> text_pb2.GenerateTextResponse:
    whole = Whole(text_pb2.GenerateTextResponse())
    for response in responses:
        whole.add(response)
    return whole.response()


@given(ids=answers, cuts=st.lists(st.integers(0, 8), max_size=6))
def test_any_cuts_leave_the_responses_of_one_call(ids: list[list[int]], cuts: list[int]) -> None:
    request = text_pb2.GenerateTextRequest(n=len(ids))
    undisturbed = responses_of(ids, request)
    progress = Progress(request)
    received: list[text_pb2.GenerateTextResponse] = []
    for cut in [*cuts, 100]:
        for response in responses_of(ids, progress.request)[:cut]:
            if progress.add(response):
                received.append(response)
        if progress.is_done:
            break
        progress.resume()
        assert progress.is_resumed
    assert progress.is_done
    assert [one.HasField("started") for one in received].count(True) == 1 and received[0].HasField("started")
    assert [one.HasField("usage") for one in received].count(True) == 1 and received[-1].HasField("usage")
    assert all(one.choices for one in received[1:])
    whole = whole_of(received)
    assert whole == whole_of(undisturbed)
    assert [list(choice.token_ids) for choice in whole.choices] == ids
    assert [choice.pieces[0].text for choice in whole.choices] == ["".join(map(str, one)) for one in ids]
    assert whole.usage.output_tokens == sum(map(len, ids))
    assert not request.stream and not request.HasField("resume"), "the program's request stays as it is"


def scored(start: int, end: int) -> pb.PromptLogprobs:
    count = end - start
    return pb.PromptLogprobs(start_index=start, width=1, token_ids=pack_u32([7] * count), ranks=pack_u32([1] * count))


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_logprobs_of_the_prompt_come_once_wherever_calls_end(kind: str, cut: int) -> None:
    """Of a long prompt, some come in messages of their own."""
    has_text = kind == "text"
    request = text_pb2.GenerateTextRequest(n=2) if has_text else engine_pb2.GenerateTokensRequest(n=2)
    response = text_pb2.GenerateTextResponse if has_text else engine_pb2.GenerateTokensResponse

    def messages(asked: Any) -> list[Any]:
        begin = next((max(1, one.prompt_logprobs_from) for one in asked.resume.choices if one.index == 0), 1)
        parts = [
            scored(begin, end)
            for begin, end in ((max(begin, a), b) for a, b in ((1, 4), (4, 9), (9, 10)))
            if begin < end
        ]
        wrapped = [text_pb2.TextPromptLogprobs(logprobs=one) for one in parts] if has_text else parts
        found = [response(prompt_logprobs=[one]) for one in wrapped]
        delta = text_pb2.TextDelta if has_text else engine_pb2.TokensDelta
        return [
            *found,
            response(choices=[delta(index=index, finish_reason=pb.FINISH_REASON_LENGTH) for index in (0, 1)]),
        ]

    progress, whole = Progress(request), Whole(response())
    for message in messages(progress.request)[:cut]:
        assert progress.add(message)
        whole.add(message)
    progress.resume()
    for message in messages(progress.request):
        assert progress.add(message)
        whole.add(message)
    found = [one.logprobs if has_text else one for one in whole.response().prompt_logprobs]
    ends = [(one.start_index, one.start_index + len(one.ranks) // 4) for one in found]
    assert ends == [(1, 4), (4, 9), (9, 10)]


def test_neighbouring_pieces_of_one_kind_merge_and_stop_reasons_stay() -> None:
    def response(**fields: Any) -> text_pb2.GenerateTextResponse:
        return text_pb2.GenerateTextResponse(choices=[text_pb2.TextDelta(index=1, **fields)])

    a, b, other = text_pb2.Piece(text="a"), text_pb2.Piece(text="b"), text_pb2.Piece(kind=1, text="c")  # type: ignore[arg-type]
    whole = whole_of([response(pieces=[a, b]), response(pieces=[b, other]), response(pieces=[a], stop_string="x")])
    assert [(piece.kind, piece.text) for piece in whole.choices[0].pieces] == [(0, "abb"), (1, "c"), (0, "a")]
    assert whole.choices[0].stop_string == "x"


def test_logprob_columns_of_tokens_are_joined() -> None:
    def response(*ids: int) -> engine_pb2.GenerateTokensResponse:
        delta = engine_pb2.TokensDelta(
            token_ids=ids, logprob_width=1, logprob_token_ids=ids, logprobs=[-1.0] * len(ids)
        )
        return engine_pb2.GenerateTokensResponse(choices=[delta])

    whole = Whole(engine_pb2.GenerateTokensResponse())
    whole.add(response(3))
    whole.add(response(4, 5))
    (choice,) = whole.response().choices
    assert list(choice.token_ids) == list(choice.logprob_token_ids) == [3, 4, 5]
    assert (choice.logprob_width, list(choice.logprobs)) == (1, [-1.0] * 3)


def test_a_request_that_resumes_by_hand_goes_on_from_there() -> None:
    request = text_pb2.GenerateTextRequest(
        n=3, resume=text_pb2.TextResume(started=STARTED, choices=[pb.ResumedChoice(index=2, token_ids=[4])])
    )
    progress = Progress(request)
    assert progress.is_resumed
    assert progress.add(text_pb2.GenerateTextResponse(started=STARTED))
    progress.add(text_pb2.GenerateTextResponse(choices=[text_pb2.TextDelta(index=2, token_ids=[5])]))
    progress.resume()
    assert progress.request.resume.choices == [pb.ResumedChoice(index=2, token_ids=[4, 5])]
    assert progress.request.resume.started == STARTED
