"""Tools without optional fields reach templates that read these; all others get the tools as they are."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.tokenizer.render import ChatTemplate
from services.tokenizer.tool_schemas import filled
from tests.tokenizer.checkpoint_templates import NAMES, rendered

USER = {"role": "user", "content": "Hi."}
BARE = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "today", "description": None, "parameters": {}}},
    {"type": "function", "function": {"name": "later", "parameters": {"type": "object", "properties": None}}},
]


def test_only_what_is_missing_is_filled() -> None:
    full = {
        "type": "function",
        "strict": True,
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"a": {}}, "required": ["a"], "x": 1},
        },
    }
    empty = {"type": "object", "properties": {}, "required": []}
    assert filled([full, BARE[0]]) == [
        full,
        {"type": "function", "function": {"name": "now", "description": "", "parameters": empty}},
    ]


@pytest.mark.parametrize("tool", [5, None, {}, {"function": 5}, {"function": {"name": "f", "parameters": 5}}])
def test_what_is_no_tool_stays(tool: Any) -> None:
    found = filled([tool])[0]
    assert found == tool or found["function"]["parameters"] == 5


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gemma2", "phi3.5-mini")])
def test_no_checkpoints_template_refuses_bare_tools(name: str) -> None:
    assert "Hi." in rendered(name, [USER], BARE)


def test_a_template_that_takes_them_gets_them_unchanged() -> None:
    assert "description" not in rendered("qwen3", [USER], BARE[:1])


def test_the_first_error_is_the_one_that_is_reported() -> None:
    template = ChatTemplate("{{ raise_exception('no tools' if 'parameters' not in tools[0].function else 'no') }}", {})
    with pytest.raises(TandemError, match="refuses these messages: no tools"):
        template.render([USER], BARE[:1], {}, add_generation_prompt=True, continue_final_message=False)
