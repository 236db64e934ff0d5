"""A call keeps what a resume needs, passes each token on once, and counts strikes."""

import pytest

from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from tests.clock import Clock


class PlainCall(Call[engine_pb2.Submit]):
    def fail(self, error: TandemError) -> None: ...


class TextCall(Call[text_pb2.TextSubmit]):
    def fail(self, error: TandemError) -> None: ...


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def make_call(**choice: object) -> PlainCall:
    """Returns a call with the handles 1 and 2; `choice` are fields of the first."""
    choices = [pb.Choice(handle=1, choice=0, **choice), pb.Choice(handle=2, choice=1)]
    return PlainCall(engine_pb2.Submit(request_id="r", prompt_token_ids=pack_u32([5]), choices=choices))


def submitted(call: PlainCall, *, alone: bool = False) -> engine_pb2.Submit:
    submit = call.next_submit(alone=alone, on_cleared=Counter())
    assert isinstance(submit, engine_pb2.Submit)
    return submit


def test_a_call_stays_accepted_when_its_accepted_choice_has_ended() -> None:
    call = make_call()
    assert not call.is_accepted
    call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=4))
    assert call.is_accepted
    call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=4, numerics_id="n"))
    call.end(1)
    assert call.is_accepted


def test_the_first_submit_is_attempt_one() -> None:
    call = make_call()
    submit = submitted(call)
    assert (submit.attempt, submit.alone, submit.request_id) == (1, False, "r")
    assert [(choice.handle, choice.choice) for choice in submit.choices] == [(1, 0), (2, 1)]
    assert not submit.HasField("seed") and not submit.choices[0].HasField("cached_tokens")


def test_a_resume_sends_what_was_accepted_and_received() -> None:
    call = make_call()
    submitted(call)
    assert call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=4))
    call.record_tokens(1, 0, pack_u32([7, 8]))
    call.end(2)
    submit = submitted(call, alone=True)
    assert (submit.attempt, submit.alone, submit.seed, submit.prompt_token_ids) == (2, True, 9, pack_u32([5]))
    (choice,) = submit.choices
    assert (choice.handle, choice.resumed_token_ids, choice.cached_tokens) == (1, pack_u32([7, 8]), 4)


def test_each_attempt_says_how_long_the_request_has_waited(clock: Clock) -> None:
    """Since the call was made, and before: in the caller's caller."""
    first, passed_on = make_call(), PlainCall(engine_pb2.Submit(choices=[pb.Choice(handle=1)], waited_ms=250))
    found = []
    for _ in range(3):
        found.append((submitted(first).waited_ms, submitted(passed_on).waited_ms))
        clock.now += 1.5
    assert found == [(0, 250), (1500, 1750), (3000, 3250)]


def test_a_resume_sends_what_the_tokenizer_resolved() -> None:
    """Instead of the chat, which no process renders again, and beside the output specification."""
    output = text_pb2.OutputSpec(bad_words=["x"])
    chat = text_pb2.ChatInput(messages_json=b"[]")
    call = TextCall(text_pb2.TextSubmit(choices=[pb.Choice(handle=1), pb.Choice(handle=2)], chat=chat, output=output))
    call.next_submit(alone=False, on_cleared=Counter())
    resolved = text_pb2.ResolvedOutput(bad_words_token_ids=[pack_u32([7]), pack_u32([8])])
    call.record_accepted(
        text_pb2.TextAccepted(handle=1, seed=9, prompt_token_ids=pack_u32([5, 6]), resolved=resolved, cached_tokens=1)
    )
    call.record_accepted(text_pb2.TextAccepted(handle=2, seed=9))
    submit = call.next_submit(alone=False, on_cleared=Counter())
    assert (submit.WhichOneof("input"), submit.prompt_token_ids) == ("prompt_token_ids", pack_u32([5, 6]))
    assert (submit.output, submit.resolved, submit.seed) == (output, resolved, 9)
    call.record_accepted(text_pb2.TextAccepted(handle=1, seed=9, resolved=resolved))
    assert call.next_submit(alone=False, on_cleared=Counter()).resolved == resolved, "replaced, not appended"


def test_an_acceptance_without_ids_keeps_those_of_the_submit() -> None:
    """Of a caller that submitted token ids."""
    call = TextCall(text_pb2.TextSubmit(choices=[pb.Choice(handle=1)], prompt_token_ids=pack_u32([5])))
    call.next_submit(alone=False, on_cleared=Counter())
    call.record_accepted(text_pb2.TextAccepted(handle=1, seed=9))
    submit = call.next_submit(alone=False, on_cleared=Counter())
    assert (submit.prompt_token_ids, submit.HasField("resolved")) == (pack_u32([5]), False)


def test_a_resume_of_a_resumed_call_keeps_its_tokens() -> None:
    """Of a tokenizer that passes on what a shim resumes."""
    call = make_call(resumed_token_ids=pack_u32([7]), cached_tokens=0)
    submitted(call)
    assert not call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=3))
    assert call.record_tokens(1, 1, pack_u32([8])) == pack_u32([8])
    choice = submitted(call).choices[0]
    assert (choice.resumed_token_ids, choice.cached_tokens) == (pack_u32([7, 8]), 0)


def test_only_the_first_accepted_message_counts() -> None:
    call = make_call()
    submitted(call)
    assert call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=4))
    submitted(call)
    assert not call.record_accepted(engine_pb2.Accepted(handle=1, seed=9, cached_tokens=8))
    assert submitted(call).choices[0].cached_tokens == 4


@pytest.mark.parametrize(
    ("start_index", "token_ids", "new"),
    [(2, [9], [9]), (1, [8, 9], [9]), (0, [7, 8], []), (0, [7], []), (2, [], [])],
    ids=["next", "overlap", "repeat", "early repeat", "empty"],
)
def test_only_new_tokens_are_returned(start_index: int, token_ids: list[int], new: list[int]) -> None:
    call = make_call()
    submitted(call)
    call.record_tokens(1, 0, pack_u32([7, 8]))
    assert call.record_tokens(1, start_index, pack_u32(token_ids)) == pack_u32(new)
    assert submitted(call).choices[0].resumed_token_ids == pack_u32([7, 8, *new])


def test_a_gap_breaks_the_stream() -> None:
    call = make_call()
    submitted(call)
    call.record_tokens(1, 0, pack_u32([7]))
    with pytest.raises(StreamBroken, match="handle 1: expected token 1, received 2"):
        call.record_tokens(1, 2, pack_u32([9]))
    assert submitted(call).choices[0].resumed_token_ids == pack_u32([7])


def test_the_first_new_token_of_an_attempt_ends_its_start() -> None:
    call, on_cleared = make_call(), Counter()
    call.next_submit(alone=False, on_cleared=on_cleared)
    call.strikes = 2
    assert call.starting
    call.record_tokens(1, 0, pack_u32([]))
    assert call.starting and call.strikes == 2 and on_cleared.count == 0
    call.record_tokens(1, 0, pack_u32([7]))
    call.record_tokens(2, 0, pack_u32([7]))
    assert not call.starting and call.strikes == 0 and on_cleared.count == 1
    call.next_submit(alone=False, on_cleared=on_cleared)
    call.record_tokens(1, 0, pack_u32([7]))
    assert call.starting and on_cleared.count == 1, "a repeat is no new token"


def tokens_of(call: PlainCall, count: int, handle: int = 1) -> None:
    """Receives the next `count` tokens of a choice."""
    call.record_tokens(handle, len(call.open_choices[handle].token_ids) // ITEM_BYTES, pack_u32([7] * count))


def test_a_call_is_starting_until_each_open_choice_has_a_token() -> None:
    """Else one choice could kill each callee while the other one makes progress."""
    call = make_call()
    for number in (1, 2):
        submitted(call)
        tokens_of(call, 1)
        assert call.starting and call.record_death() and call.strikes == number
    submitted(call)
    tokens_of(call, 1)
    call.end(2)
    assert not call.starting and not call.strikes


def test_deaths_that_follow_each_other_make_the_next_trial_longer() -> None:
    call, found = make_call(), []
    call.end(2)
    for tokens in (1, 4, 15, 15, 15, 16, 63, 64, 4, 3):
        submitted(call)
        tokens_of(call, tokens)
        call.record_death()
        found.append(call.strikes)
    assert found == [0, 0, 1, 2, 3, 0, 1, 0, 0, 1]


def test_a_call_does_not_change_the_submit_of_its_caller() -> None:
    submit = engine_pb2.Submit(choices=[pb.Choice(handle=1)])
    submitted(PlainCall(submit))
    assert submit == engine_pb2.Submit(choices=[pb.Choice(handle=1)])


def scored(handle: int, start: int, count: int) -> pb.PromptLogprobs:
    columns = {"token_ids": bytes(8 * count), "logprobs": bytes(8 * count), "ranks": bytes(4 * count)}
    return pb.PromptLogprobs(handle=handle, start_index=start, width=2, **columns)


def test_logprobs_of_the_prompt_are_passed_on_once_and_a_resume_asks_for_the_rest() -> None:
    call = make_call()
    submitted(call)
    assert call.record_prompt_logprobs(scored(1, 1, 4)) and call.record_prompt_logprobs(scored(1, 5, 2))
    assert not call.record_prompt_logprobs(scored(1, 1, 4)) and not call.record_prompt_logprobs(scored(1, 5, 2))
    assert [choice.prompt_logprobs_from for choice in submitted(call).choices] == [7, 1]
    assert call.record_prompt_logprobs(scored(1, 7, 1))


@pytest.mark.parametrize(("start", "count"), [(6, 1), (4, 2), (1, 9)])
def test_a_gap_in_the_prompts_logprobs_breaks_the_stream_and_so_does_a_partial_repeat(start: int, count: int) -> None:
    call = make_call(prompt_logprobs_from=5)
    with pytest.raises(StreamBroken, match="expected token 5"):
        call.record_prompt_logprobs(scored(1, start, count))
    assert call.record_prompt_logprobs(scored(1, 5, 1))


@pytest.mark.parametrize("change", [{"width": 3}, {"width": 0}, {"ranks": b""}, {"ranks": b"123"}, {"logprobs": b""}])
def test_columns_that_contradict_each_other_break_the_stream(change: dict[str, object]) -> None:
    wrong = scored(1, 1, 2)
    wrong.MergeFrom(pb.PromptLogprobs(**change))  # type: ignore[arg-type]
    for name, value in change.items():
        setattr(wrong, name, value)
    with pytest.raises(StreamBroken, match="prompt_logprobs"):
        make_call().record_prompt_logprobs(wrong)
