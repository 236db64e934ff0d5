"""The tokenizer's configuration as clients see it."""

import json
from pathlib import Path
from typing import Any

import pytest

import demo
from services.errors import Fatal
from services.tokenizer.tokenizer_config import DEFAULT_CLASS, PATHS, tokenizer_config


def shown(folder: Path, template: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer_config(folder, template))
    return found


def test_the_demos() -> None:
    file = json.loads((demo.CHECKPOINT / "tokenizer_config.json").read_text())
    found = shown(demo.CHECKPOINT, "{{ messages }}")
    assert found["chat_template"] == "{{ messages }}"
    assert found["eos_token"] == file["eos_token"]
    assert found["tokenizer_class"] == file["tokenizer_class"]


def test_added_tokens_are_texts_and_paths_are_left_out(tmp_path: Path) -> None:
    token = {"__type": "AddedToken", "content": "<s>", "lstrip": False, "special": True}
    config = {
        "bos_token": token,
        "eos_token": "é",
        "added_tokens_decoder": {"1": token},
        "extra": [token, {"content": 5, "lstrip": 1}],
        "chat_template": "old",
        **dict.fromkeys(PATHS, "/home/operator/model"),
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = shown(tmp_path)
    assert found == {
        "bos_token": "<s>",
        "eos_token": "é",
        "added_tokens_decoder": {"1": "<s>"},
        "extra": ["<s>", {"content": 5, "lstrip": 1}],
        "tokenizer_class": DEFAULT_CLASS,
    }
    assert "operator" not in json.dumps(found)


def test_a_model_without_the_file(tmp_path: Path) -> None:
    assert shown(tmp_path) == {"tokenizer_class": DEFAULT_CLASS}
    assert shown(tmp_path, "t") == {"tokenizer_class": DEFAULT_CLASS, "chat_template": "t"}
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(Fatal):
        shown(tmp_path)
