"""The request of completions: prompts, and limits on all prompts together."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.prompt_limits import MAX_TRUNCATED_IDS
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.completions.schema import (
    MAX_ALLOWED_IDS,
    MAX_CHOICES,
    MAX_PROMPTS,
    MAX_SUFFIX_CHARACTERS,
    CompletionRequest,
)
from tests.shim.apis import field_values
from tests.shim.apis.field_values import Json, submits
from tests.shim.harness import FACTS


def refused(change: Json) -> TandemError:
    return field_values.refused(COMPLETIONS_API, change)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", 1], "prompt.1"),
        ([1, "a"], "prompt.1"),
        ([1, -5], "prompt.1"),
        ([1, 2**32], "prompt.1"),
        ([1, 1.5], "prompt.1"),
        ([True], "prompt.0"),
        ([[1], []], "prompt.1"),
        ([[1], [2, "a"]], "prompt.1.1"),
        ([[1], [-1]], "prompt.1.0"),
        ([None], "prompt.0"),
        (["a"] * (MAX_PROMPTS + 1), "prompt"),
        ([[1]] * (MAX_PROMPTS + 1), "prompt"),
    ],
)
def test_paths_into_prompts(prompt: Any, param: str) -> None:
    assert refused({"prompt": prompt}).param == param


def test_prompts_become_submits() -> None:
    (text,) = submits(COMPLETIONS_API, {"prompt": ""})
    assert text.WhichOneof("input") == "text" and text.text.add_special_tokens
    (text,) = submits(COMPLETIONS_API, {"prompt": "a", "add_special_tokens": False})
    assert (text.text.text, text.text.add_special_tokens) == ("a", False)
    (ids,) = submits(COMPLETIONS_API, {"prompt": [3, 2**32 - 1]})
    assert unpack_u32(ids.prompt_token_ids) == [3, 2**32 - 1]
    many = submits(COMPLETIONS_API, {"prompt": [[3], [4, 5]]})
    assert [unpack_u32(one.prompt_token_ids) for one in many] == [[3], [4, 5]]


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_texts_count_for_every_prompt(name: str) -> None:
    texts = ["x" * 1024] * 64
    submits(COMPLETIONS_API, {"prompt": ["a"] * 16, name: texts})
    error = refused({"prompt": ["a"] * 17, name: texts})
    assert error.param == name and error.message.startswith(f"{name} has ") and "17 prompts" in error.message


def test_allowed_ids_count_for_every_prompt() -> None:
    """Each prompt's submit has a copy: a body of 1 MB must not become messages of 600 MB."""
    facts = pb.EngineFacts()
    facts.CopyFrom(FACTS)
    facts.vocab_size = 2**20
    allowed = [1] * 2**20
    submits(COMPLETIONS_API, {"prompt": ["a"] * 4, "allowed_token_ids": allowed}, facts)
    error = field_values.refused(COMPLETIONS_API, {"prompt": ["a"] * 5, "allowed_token_ids": allowed}, facts)
    assert (error.param, error.message) == (
        "allowed_token_ids",
        f"allowed_token_ids has {5 * 2**20} ids for 5 prompts, but at most {MAX_ALLOWED_IDS}",
    )


def test_choices_of_all_prompts() -> None:
    submits(COMPLETIONS_API, {"prompt": ["a"] * (MAX_CHOICES // 4), "n": 4})
    error = refused({"prompt": ["a"] * (MAX_CHOICES // 4 + 1), "n": 4})
    assert (error.param, error.message) == ("n", "257 prompts times n = 1028 choices, but at most 1024")


def test_a_prompt_to_truncate_may_be_longer_than_the_context() -> None:
    long = [1] * (FACTS.max_model_len + 1)
    (submit,) = submits(COMPLETIONS_API, {"prompt": long, "truncate_prompt_tokens": 5})
    assert len(submit.prompt_token_ids) == 4 * len(long)
    error = refused({"prompt": [1] * (MAX_TRUNCATED_IDS + 1), "truncate_prompt_tokens": 5})
    assert (
        error.message == f"prompt: {MAX_TRUNCATED_IDS + 1} token ids, but at most {MAX_TRUNCATED_IDS} can be truncated"
    )


def test_a_budget_of_reasoning_needs_a_chat() -> None:
    error = refused({"thinking_token_budget": 5})
    assert error.message == (
        "thinking_token_budget is not supported by this server:"
        " only /v1/chat/completions separates reasoning from the answer"
    )


def test_a_million_wrong_items_make_one_error() -> None:
    """Otherwise building the list of errors would block the event loop for seconds."""
    bodies: list[Json] = [{"prompt": [{}] * 10**6}, {"prompt": [[{}] * 10**6]}]
    for body in bodies:
        with pytest.raises(ValidationError) as caught:
            CompletionRequest.model_validate(body)
        assert len(caught.value.errors(include_input=False)) <= 4  # one for each kind of prompt
    for name in ("allowed_token_ids", "logprob_token_ids", "bad_words", "stop_token_ids", "stop"):
        with pytest.raises(ValidationError) as caught:
            CompletionRequest.model_validate({"prompt": "a", name: [{}] * 10**5})
        assert len(caught.value.errors(include_input=False)) <= 2, name


@pytest.mark.parametrize(("suffix", "sent"), [("after", "after"), ("", ""), (None, "")])
def test_a_suffix_goes_with_every_text(suffix: str | None, sent: str) -> None:
    texts = submits(COMPLETIONS_API, {"prompt": ["a", "b"], "suffix": suffix})
    assert [one.text.suffix for one in texts] == [sent, sent]


def test_a_suffix_needs_texts() -> None:
    for prompt in ([1, 2], [[1], [2]]):
        error = refused({"prompt": prompt, "suffix": "after"})
        message = "suffix is only allowed with a prompt of text, not of token ids"
        assert (error.param, error.message) == ("suffix", message)
        submits(COMPLETIONS_API, {"prompt": prompt, "suffix": ""})


def test_a_suffix_has_no_echo() -> None:
    """As in OpenAI's API. The prompt would be the prefix; its logprobs would be those of prefix, suffix and markers."""
    error = refused({"prompt": "a", "suffix": "after", "echo": True})
    assert (error.param, error.message[:48]) == ("suffix", "suffix and echo are not allowed together: the an")
    submits(COMPLETIONS_API, {"prompt": "a", "suffix": "", "echo": True})


def test_a_suffix_counts_for_every_prompt() -> None:
    """Each prompt's submit has a copy: a body of 60 MB must not become messages of 60 GB."""
    suffix = "x" * (MAX_SUFFIX_CHARACTERS // 4)
    submits(COMPLETIONS_API, {"prompt": ["a"] * 4, "suffix": suffix})
    error = refused({"prompt": ["a"] * 5, "suffix": suffix})
    assert error.param == "suffix" and error.message == (
        f"suffix has {5 * len(suffix)} characters for 5 prompts, but at most {MAX_SUFFIX_CHARACTERS}"
    )
