"""A body as submits, and what else of it is kept."""

import json
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.apis.chat.submit import CHAT_TRANSLATION
from services.shim.apis.completions.submit import COMPLETIONS_TRANSLATION
from services.shim.parsing import MAX_SUBMIT_BYTES
from services.shim.prepare import Prepared, PrepareOptions, prepare
from tests.shim.harness import FACTS

OPTIONS = PrepareOptions(max_logprob_entries=1000)
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(options: PrepareOptions = OPTIONS, **fields: Any) -> Prepared:
    return prepare(CHAT_TRANSLATION, json.dumps({"messages": MESSAGES, **fields}).encode(), FACTS, options)


def test_what_the_endpoint_needs() -> None:
    found = chat(request_id="mine", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (found.facts.model, found.facts.request_id, found.facts.stream, found.facts.include_usage) == (
        "fake",
        "mine",
        True,
        True,
    )
    assert found.facts.answer.continuous_usage and not found.facts.answer.token_ids and found.bulk == {}
    (submit,) = found.submits
    assert json.loads(submit.chat.messages_json) == MESSAGES
    assert found.facts.num_bytes == submit.ByteSize() > 0


def test_options_of_the_server() -> None:
    forced = PrepareOptions(
        response_role="bot", enable_force_include_usage=True, enable_prompt_tokens_details=False, max_logprob_entries=9
    )
    found = chat(forced)
    assert (
        found.facts.include_usage
        and found.facts.answer.continuous_usage
        and not found.facts.answer.prompt_tokens_details
    )
    assert found.facts.answer.response_role == "bot"
    with pytest.raises(TandemError, match="max_logprob_entries is 9"):
        chat(forced, logprobs=True, max_tokens=10)
    with pytest.raises(TandemError, match="unsupported parameter: other"):
        chat(forced, other=1)
    assert chat(PrepareOptions(ignore_unknown_fields=True), other=1).facts.model == "fake"


def test_a_submit_per_prompt_in_the_group_of_the_caller() -> None:
    body = json.dumps({"prompt": ["a", "b"], "n": 2, "return_token_ids": True}).encode()
    found = prepare(COMPLETIONS_TRANSLATION, memoryview(body), FACTS, OPTIONS, "group")
    assert [(one.text.text, one.cache_group, len(one.choices)) for one in found.submits] == [
        ("a", "group", 2), ("b", "group", 2)
    ]  # fmt: skip
    assert found.facts.answer.token_ids


def test_the_first_error_counts() -> None:
    """What is wrong with the body comes before what the server lacks, and the model before the rest of the submit."""
    wrong, other = b'{"prompt": 5}', b'{"prompt": "a", "model": "other", "logprobs": 20, "max_tokens": 5000}'
    for text, facts, code in (
        (wrong, None, "INVALID_ARGUMENT"),
        (b'{"prompt": "a"}', None, "UNAVAILABLE"),
        (other, FACTS, "NOT_FOUND"),
    ):
        with pytest.raises(TandemError) as caught:
            prepare(COMPLETIONS_TRANSLATION, text, facts, OPTIONS)
        assert caught.value.code == code


def test_a_submit_that_is_too_large() -> None:
    with pytest.raises(TandemError, match=f"at most {MAX_SUBMIT_BYTES} are allowed"):
        chat(chat_template_kwargs={"a": "a" * MAX_SUBMIT_BYTES})


def test_submits_have_no_handles_yet() -> None:
    (submit,) = chat(n=2).submits
    assert isinstance(submit, text_pb2.TextSubmit)
    assert [choice.handle for choice in submit.choices] == [0, 0] and not submit.request_id
