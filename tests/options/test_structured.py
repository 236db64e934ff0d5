"""--structured-outputs-config: what has an effect is kept, what vLLM has beside it is accepted or refused by name."""

import json
from typing import Any

import pytest

from services.options.command_line import parse
from tests.options.test_command_line import refusal

FLAG = "--structured-outputs-config"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"backend": "auto"}, {}),
        ({"backend": "guidance", "disable_fallback": True, "enable_in_reasoning": False}, {}),
        ({"disable_any_whitespace": True, "backend": "auto"}, {"disable_any_whitespace": True}),
        ({"disable_additional_properties": False}, {"disable_additional_properties": False}),
        ({"max_whitespace": 1000}, {"max_whitespace": 1000}),
    ],
)
def test_what_is_accepted(given: dict[str, Any], kept: dict[str, Any]) -> None:
    assert parse("tokenizer", [f"{FLAG}={json.dumps(given)}"]).structured_outputs_config == kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "xgrammar"}, 'backend is "xgrammar", but must be "auto" or "guidance"'),
        ({"disable_fallback": 1}, "disable_fallback is 1, but must be false or true"),
        ({"enable_in_reasoning": True}, "enable_in_reasoning is true, but must be false"),
        ({"disable_any_whitespace": "yes"}, 'disable_any_whitespace is "yes", but must be true or false'),
        ({"max_whitespace": 0}, "max_whitespace is 0, but must be an integer from 1 to 1000"),
        ({"max_whitespace": 1001}, "max_whitespace is 1001, but must be an integer from 1 to 1000"),
        ({"max_whitespace": True}, "max_whitespace is true, but must be an integer from 1 to 1000"),
        ({"reasoning_parser": "qwen3"}, "the key 'reasoning_parser' is not supported: use backend, "),
        ([], "not a JSON object"),
    ],
)
def test_what_is_refused(given: Any, said: str) -> None:
    message = refusal("tokenizer", f"{FLAG}={json.dumps(given)}")
    assert message.startswith(f"{FLAG}: ") and said in message


def test_without_the_flag() -> None:
    assert parse("tokenizer", []).structured_outputs_config is None


def test_as_vllms_dotted_flags() -> None:
    argv = [f"{FLAG}.backend=auto", f"{FLAG}.max_whitespace", "8"]
    assert parse("serve", argv).role_values["structured_outputs_config"] == {"max_whitespace": 8}
