"""Where a model's chat template and its special tokens come from: the option, or one of several files."""

import json
from pathlib import Path

import pytest

from services.errors import Fatal
from services.tokenizer.find_template import find_template, find_tool_template, response_template, special_tokens
from tests.tokenizer.templates import QWEN3


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert find_template(tmp_path, None) is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert find_template(tmp_path, None) == "D"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert find_template(tmp_path, None) == "J"
    (tmp_path / "chat_template.jinja").write_text("{{ own }}")
    assert find_template(tmp_path, None) == "{{ own }}"
    other = tmp_path / "other"
    other.write_text("{{ other }}")
    assert find_template(tmp_path, str(other)) == "{{ other }}"


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    assert find_tool_template(tmp_path, None) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "D"}))
    assert find_tool_template(tmp_path, None) is None
    config.write_text(json.dumps({"chat_template": [{"name": "tool_use", "template": "T"}]}))
    assert find_tool_template(tmp_path, None) == "T"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("F")
    assert find_tool_template(tmp_path, None) == "F"
    assert find_tool_template(tmp_path, "{{ other }}") is None, "the operator's template is for all requests"


def test_a_long_template_may_be_the_option_itself(tmp_path: Path) -> None:
    assert find_template(tmp_path, QWEN3) == QWEN3


def test_an_option_that_is_neither_file_nor_template_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="nowhere is neither a file nor a template"):
        find_template(tmp_path, "nowhere")


def test_special_tokens_as_templates_name_them(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "sep_token": "<sep>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<sep>"}


@pytest.mark.parametrize("content", [b"[", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_configuration_is_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    for read in (special_tokens, lambda path: find_template(path, None)):
        with pytest.raises(Fatal, match="tokenizer_config.json"):
            read(tmp_path)


def test_a_template_that_is_no_text_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(Fatal, match="broken.jinja"):
        find_template(tmp_path, str(tmp_path / "broken.jinja"))


def test_the_response_template(tmp_path: Path) -> None:
    assert response_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert response_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"response_template": {"fields": {}}}')
    assert response_template(tmp_path) == {"fields": {}}
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(Fatal, match="does not hold a JSON object"):
        response_template(tmp_path)
