"""The requests of programs: choices, names of fields, trace context."""

from typing import Any

import pytest

from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.program_request import FIELDS, choices_of, field_of, traceparent_of

Request = engine_pb2.GenerateTokensRequest


def test_a_request_has_one_choice_unless_it_says_more() -> None:
    assert [choice.choice for choice in choices_of(Request(), 4, 64)] == [0]
    assert [(choice.handle, choice.choice) for choice in choices_of(Request(n=3), 4, 64)] == [(0, 0), (1, 1), (2, 2)]


def test_a_resume_has_the_choices_that_it_names() -> None:
    started = engine_pb2.TokensStarted(seed=5, cached_tokens=7)
    resume = engine_pb2.TokensResume(started=started, choices=[pb.ResumedChoice(index=2, token_ids=[8, 9])])
    (choice,) = choices_of(Request(n=3, resume=resume), 4, 64)
    assert (choice.choice, unpack_u32(choice.resumed_token_ids), choice.cached_tokens) == (2, [8, 9], 7)
    resume.ClearField("started")
    (choice,) = choices_of(Request(n=3, resume=resume), 4, 64)
    assert not choice.HasField("cached_tokens")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request(n=5), "n"),
        (Request(n=2**32 - 1), "n"),
        (Request(resume=engine_pb2.TokensResume()), "resume.choices"),
        (Request(resume={"choices": [{"index": 1}]}), "resume.choices"),
        (Request(n=2, resume={"choices": [{"index": 1}, {"index": 1}]}), "resume.choices"),
        (Request(resume={"choices": [{"index": 0, "token_ids": [1] * 64}]}), "resume.choices"),
    ],
)
def test_wrong_choices_are_refused(request_: Any, param: str) -> None:
    with pytest.raises(TandemError) as refused:
        choices_of(request_, 4, 64)
    assert (refused.value.code, refused.value.param) == ("INVALID_ARGUMENT", param)


@pytest.mark.parametrize(
    ("param", "text", "tokens"),
    [
        ("n", "n", "n"),
        ("temperature", "sampling.temperature", "sampling.temperature"),
        ("stop", "output.stop", "stop"),
        ("messages", "chat.messages_json", "chat.messages_json"),
        ("prompt", "token_ids", "prompt_token_ids"),
        ("bad_words", "output.bad_words", "sampling.bad_words_token_ids"),
        ("thinking_token_budget", "output.thinking_token_budget", "sampling.thinking_budget.max_tokens"),
        ("messages.0.content", "chat.messages_json", "chat.messages_json"),
        ("resume.started.numerics_id", "resume.started.numerics_id", "resume.started.numerics_id"),
        ("logit_bias", "sampling.logit_bias_token_ids", "sampling.logit_bias_token_ids"),
        ("", "", ""),
    ],
)
def test_fields_have_the_names_of_the_request(param: str, text: str, tokens: str) -> None:
    assert field_of(text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds()), param) == text
    assert field_of(Request(), param) == tokens


@pytest.mark.parametrize("message", [text_pb2.GenerateTextRequest, Request])
def test_every_other_name_leads_to_a_field(message: Any) -> None:
    """The names that need a table are paths of one of the requests."""
    for path in FIELDS.values():
        owner = message.DESCRIPTOR
        names = path.split(".")
        if names[0] not in owner.fields_by_name:
            continue  # the other request's
        for name in names:
            field = owner.fields_by_name[name]
            owner = field.message_type


def test_the_trace_context_comes_from_the_metadata() -> None:
    class Context:
        def __init__(self, *metadata: tuple[str, Any]) -> None:
            self.invocation_metadata = lambda: metadata

    parent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    assert traceparent_of(Context(("x", "y"), ("traceparent", parent))) == parent  # type: ignore[arg-type]
    assert traceparent_of(Context(("traceparent-bin", b"x"))) == ""  # type: ignore[arg-type]
    assert traceparent_of(Context()) == ""  # type: ignore[arg-type]
