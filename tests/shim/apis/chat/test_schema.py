"""The request of chat completions: tools, and what does not go together."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.rpc.errors import TandemError
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat.schema import ChatRequest
from services.shim.parsing import validate
from tests.shim.apis import field_values
from tests.shim.apis.field_values import CHAT, TOOL, Json
from tests.shim.harness import FACTS


def refused(change: Json) -> TandemError:
    return field_values.refused(CHAT_API, change)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (5, "tools.0"),
        ({"type": "function"}, "tools.0.function"),
        ({"type": "custom", "function": {}}, "tools.0.type"),
        ({"type": "function", "function": "f"}, "tools.0.function"),
    ],
)
def test_paths_into_tools(tool: Any, param: str) -> None:
    assert refused({"tools": [tool]}).param == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"logprob_token_ids": [1], "logprobs": False}, "logprob_token_ids"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"min_tokens": 9, "max_completion_tokens": 8}, "min_tokens"),
        ({"min_tokens": 9, "max_completion_tokens": 8, "max_tokens": 99}, "min_tokens"),
        ({"documents": ["a"]}, "documents.0"),
        ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
        ({"functions": [{"name": "f"}], "tool_choice": "none"}, "tool_choice"),
        ({"functions": [{"name": "f"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "function_call": {"name": "f"}}, "function_call"),
        ({"tools": [TOOL], "function_call": "none"}, "function_call"),
    ],
)
def test_what_does_not_go_together(change: Json, param: str) -> None:
    assert refused(change).param == param


@pytest.mark.parametrize(("budget", "limit"), [(-2, "greater than or equal to -1"), (2**31, "2147483647")])
def test_a_wrong_budget_is_told_its_limit(budget: int, limit: str) -> None:
    error = refused({"thinking_token_budget": budget})
    assert error.param == "thinking_token_budget" and limit in error.message


def test_logprobs_count_for_top_logprobs() -> None:
    def count(**fields: Any) -> int | None:
        return validate(ChatRequest, CHAT | fields, FACTS).num_logprobs

    assert [count(), count(logprobs=False, top_logprobs=0), count(logprobs=True)] == [None, None, 0]
    assert count(logprobs=True, top_logprobs=3) == 3


def test_max_completion_tokens_wins() -> None:
    request = validate(ChatRequest, CHAT | {"max_tokens": 5, "max_completion_tokens": 50, "min_tokens": 9}, FACTS)
    assert request.token_limit == 50
    assert validate(ChatRequest, CHAT | {"max_tokens": 5}, FACTS).token_limit == 5
    assert validate(ChatRequest, CHAT, FACTS).token_limit is None


def test_a_million_wrong_items_make_one_error() -> None:
    """Otherwise building the list of errors would block the event loop for seconds."""
    for body in ({"messages": [5] * 10**6}, CHAT | {"tools": [5] * 10**6}, CHAT | {"documents": [5] * 1000}):
        with pytest.raises(ValidationError) as caught:
            ChatRequest.model_validate(body)
        assert len(caught.value.errors(include_input=False)) == 1
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": [{"role": "user", "content": [5] * 10**6}]})
    assert len(caught.value.errors(include_input=False)) <= 3  # one for each kind of content


def test_a_tool_without_a_type_is_a_function() -> None:
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": ""}], "tools": [{"function": {}}]})
    assert request.tools is not None and request.tools[0].type == "function"
