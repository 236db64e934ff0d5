"""A program's request as a submit, and the responses that its choices become."""

import pytest

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT
from services.tokenizer.generate import TextResponses, text_entry

PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def submit_of(request: text_pb2.GenerateTextRequest) -> text_pb2.TextSubmit:
    return text_entry(request, PARENT, 8, 64).submit


def test_a_request_becomes_a_submit() -> None:
    request = text_pb2.GenerateTextRequest(
        request_id="r",
        text=text_pb2.TextInput(text="a", add_special_tokens=True),
        n=2,
        seed=0,
        sampling=pb.SamplingParams(temperature=0.5),
        output=text_pb2.OutputSpec(stop=["b"]),
        truncation=text_pb2.Truncation(max_tokens=3),
        cache_salt="s",
        cache_group="g",
        priority=-1,
        return_sampling=True,
    )
    submit = submit_of(request)
    assert (submit.request_id, submit.attempt, submit.traceparent) == ("r", 1, PARENT)
    assert (submit.cache_group, submit.cache_salt) == ("g", "s")
    assert (submit.text, submit.sampling, submit.output) == (request.text, request.sampling, request.output)
    assert (submit.truncation.max_tokens, submit.priority, submit.return_sampling) == (3, -1, True)
    assert submit.HasField("seed") and submit.seed == 0
    assert [choice.choice for choice in submit.choices] == [0, 1]
    assert not submit.alone and not submit.HasField("resolved")
    assert submit.waited_ms == 0 and "waited_ms" not in request.DESCRIPTOR.fields_by_name


def test_without_an_output_specification_special_tokens_are_skipped() -> None:
    assert submit_of(text_pb2.GenerateTextRequest()).output.skip_special_tokens
    empty = text_pb2.GenerateTextRequest(output=text_pb2.OutputSpec())
    assert not submit_of(empty).output.skip_special_tokens


def test_token_ids_become_a_column() -> None:
    submit = submit_of(text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds(ids=[7, 8])))
    assert unpack_u32(submit.prompt_token_ids) == [7, 8]
    assert submit_of(text_pb2.GenerateTextRequest()).WhichOneof("input") is None


def test_a_resume_sends_what_was_settled_and_renders_nothing_again() -> None:
    resolved = text_pb2.ResolvedOutput(bad_words_token_ids=[pack_u32([9])])
    started = text_pb2.TextStarted(seed=5, prompt_token_ids=[7, 8], resolved=resolved, numerics_id="n1")
    request = text_pb2.GenerateTextRequest(
        chat=text_pb2.ChatInput(messages_json=b"[]"),
        seed=1,
        truncation=text_pb2.Truncation(max_tokens=1),
        resume=text_pb2.TextResume(started=started, choices=[pb.ResumedChoice(index=0, token_ids=[3])]),
    )
    submit = submit_of(request)
    assert (submit.attempt, submit.seed, submit.resolved, submit.numerics_id) == (2, 5, resolved, "n1")
    assert unpack_u32(submit.prompt_token_ids) == [7, 8] and not submit.HasField("truncation")
    assert unpack_u32(submit.choices[0].resumed_token_ids) == [3]
    request.resume.ClearField("started")
    submit = submit_of(request)
    assert (submit.attempt, submit.seed, submit.WhichOneof("input")) == (2, 1, "chat"), "nothing was settled"


def test_the_first_response_has_what_was_settled() -> None:
    responses = TextResponses(stream=True)
    responses.expect([pb.Choice(handle=0), pb.Choice(handle=1)])
    sampling = pb.SamplingParams(temperature=0.5)
    for handle in (1, 0):
        responses.put_accepted(
            text_pb2.TextAccepted(
                handle=handle,
                seed=4,
                prompt_token_ids=pack_u32([7]),
                cached_tokens=16,
                sampling=sampling,
                numerics_id="n1",
            )
        )
    responses.put_tokens(1, 0, [3], [(CONTENT, "x")], [])
    started = responses.take().started
    assert (started.seed, list(started.prompt_token_ids), started.cached_tokens) == (4, [7], 16)
    assert (started.numerics_id, started.sampling) == ("n1", sampling)
    responses.put_tokens(1, 1, [4], [], [])
    assert not responses.take().HasField("started")


def test_text_merges_and_ends_with_what_was_held_back() -> None:
    responses = TextResponses(stream=True)
    responses.expect([pb.Choice(handle=0)])
    logprobs = [text_pb2.TokenLogprobs(sampled=text_pb2.TokenLogprob(token_id=3), text_offset=0)]
    responses.put_tokens(0, 0, [3], [(CONTENT, "He")], logprobs)
    responses.put_tokens(0, 1, [4], [(CONTENT, "l")], logprobs)
    responses.put_terminal(
        text_pb2.TextTerminal(handle=0, reason=pb.FINISH_REASON_STOP, pieces=["lo"], stop_token_id=9, output_tokens=2)
    )
    response = responses.take()
    (delta,) = response.choices
    assert [(piece.kind, piece.text) for piece in delta.pieces] == [(CONTENT, "Hello")]
    assert (list(delta.token_ids), len(delta.logprobs), delta.stop_token_id) == ([3, 4], 2, 9)
    assert delta.finish_reason == pb.FINISH_REASON_STOP and response.usage.output_tokens == 2
    assert responses.is_done


@pytest.mark.parametrize(
    "request_",
    [
        text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds(ids=[1] * 64)),
        text_pb2.GenerateTextRequest(
            resume=text_pb2.TextResume(
                started=text_pb2.TextStarted(prompt_token_ids=[1] * 64), choices=[pb.ResumedChoice()]
            )
        ),
    ],
)
def test_too_many_ids_are_refused_before_they_are_converted(request_: text_pb2.GenerateTextRequest) -> None:
    with pytest.raises(TandemError, match="maximum context length is 64"):
        submit_of(request_)
    request_.truncation.max_tokens = 5
    if not request_.HasField("resume"):
        assert len(unpack_u32(submit_of(request_).prompt_token_ids)) == 64
