"""tokenizer_config.json as clients may see it: with the chat template in use, and without paths of this machine."""

import json
from pathlib import Path
from typing import Any

from services.tokenizer.find_template import read_json

# Where the files lay that the tokenizer was made of.
PATHS = frozenset({"name_or_path", "vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file"})
DEFAULT_CLASS = "PreTrainedTokenizerFast"  # what transformers makes of tokenizer.json alone


def tokenizer_config(path: Path, template: str | None) -> bytes:
    """Returns the configuration of the model directory `path` as JSON. Added tokens are their texts, as in vLLM.

    `template`: the chat template in use; None: there is none. Raises Fatal if the file cannot be read.
    """
    file = path / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    shown = {name: _plain(value) for name, value in config.items() if name not in PATHS | {"chat_template"}}
    shown.setdefault("tokenizer_class", DEFAULT_CLASS)
    if template is not None:
        shown["chat_template"] = template
    return json.dumps(shown, ensure_ascii=False).encode(errors="replace")


def _plain(value: Any) -> Any:
    """Returns a value in which each added token is its text."""
    if isinstance(value, dict):
        is_token = isinstance(value.get("content"), str) and "lstrip" in value
        return value["content"] if is_token else {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
