"""Finds a model's chat template, its response template and its special tokens: from the option, or in the files of the
model directory."""

import json
from pathlib import Path
from typing import Any

from services.errors import Fatal

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _read_text(file: Path) -> str:
    """Returns the file's text. Raises Fatal when it cannot be read or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"cannot read {file}: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Returns the file's JSON object. Raises Fatal when it cannot be read or holds none."""
    try:
        content = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise Fatal(f"cannot read {file}: {error}") from error
    if not isinstance(content, dict):
        raise Fatal(f"{file} does not hold a JSON object")
    return content


def find_template(path: Path, override: str | None) -> str | None:
    """Returns the template's jinja2 source: that of `override` (--chat-template: a file or the source itself), else
    that of the model directory `path`; None if neither exists.

    Raises Fatal when `override` is neither, or a file cannot be read.
    """
    if override is not None:
        if "{" in override:
            return override
        if not Path(override).is_file():
            raise Fatal(f"--chat-template: {override} is neither a file nor a template (which contains a brace)")
        return _read_text(Path(override))
    return _template_of(path, "default")


def find_tool_template(path: Path, override: str | None) -> str | None:
    """Returns the template that the model has for requests with tools; None if it has no other one for them.

    Raises Fatal when a file cannot be read.
    """
    file = path / "additional_chat_templates" / "tool_use.jinja"
    if override is not None:
        return None
    return _read_text(file) if file.is_file() else _template_of(path, "tool_use")


def _template_of(path: Path, named: str) -> str | None:
    """Returns the model's template by this name; a template without a name is the default."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        file = path / name
        if file.is_file():
            template = _read_text(file) if name.endswith(".jinja") else read_json(file).get("chat_template")
            if isinstance(template, list):
                template = next((one for one in template if isinstance(one, dict) and one.get("name") == named), {})
                template = template.get("template")
            elif named != "default":
                template = None
            if template:
                return str(template)
    return None


def response_template(path: Path) -> Any:
    """Returns the `response_template` of tokenizer_config.json in the directory `path`, of any type; None without one.

    Raises Fatal when the file cannot be read.
    """
    file = path / "tokenizer_config.json"
    return read_json(file).get("response_template") if file.is_file() else None


def special_tokens(path: Path) -> dict[str, str]:
    """Returns the special tokens of tokenizer_config.json in the directory `path`: {"bos_token": "<s>"} and so on.

    Empty without that file. Raises Fatal when it cannot be read.
    """
    file = path / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    found = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        if value is not None:
            found[name] = str(value.get("content") if isinstance(value, dict) else value)
    return found
