"""Chat templates: render OpenAI's messages to the prompt's text.

Templates come from the checkpoint or the operator, never from a request, and run in jinja2's sandbox, with the
environment that transformers gives them (https://huggingface.co/docs/transformers/chat_templating).
"""

import datetime
import json
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.errors import Fatal
from services.rpc.errors import invalid

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # clients use any of these names
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # its trailing space shows whether the template strips content


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its content is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own type)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kwargs)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _read_text(file: Path) -> str:
    """Returns the file's text. Raises Fatal when it cannot be read or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"cannot read {file}: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
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
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        file = path / name
        if file.is_file():
            template = _read_text(file) if name.endswith(".jinja") else _read_json(file).get("chat_template")
            if isinstance(template, list):  # named templates
                named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
                template = named[0].get("template") if named else None
            if template:
                return str(template)
    return None


def special_tokens(path: Path) -> dict[str, str]:
    """Returns the special tokens of tokenizer_config.json in the directory `path`: {"bos_token": "<s>"} and so on.

    Empty without that file. Raises Fatal when it cannot be read.
    """
    file = path / "tokenizer_config.json"
    config = _read_json(file) if file.is_file() else {}
    found = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        if value is not None:
            found[name] = str(value.get("content") if isinstance(value, dict) else value)
    return found


class ChatTemplate:
    def __init__(self, template: str | None, variables: dict[str, str]) -> None:
        """`template`: jinja2 source; None: `render` refuses every request. `variables`: text by name, for use in the
        template, such as {"bos_token": "<s>"}. Raises Fatal when the template is not valid."""
        self._variables = variables
        try:
            self._template = _environment().from_string(template) if template is not None else None
        except jinja2.TemplateError as error:
            raise Fatal(f"the chat template is not valid: {error}") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        kwargs: dict[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Returns the prompt's text. `messages` and `tools` are OpenAI's; `kwargs`: more variables, from the request.

        With `continue_final_message`, the text ends with the content of the last message. Raises TandemError
        (INVALID_ARGUMENT) when there is no template, it raises an error or does not render that content, the last
        message has none, or the arguments of a tool call are not JSON.
        """
        if self._template is None:
            raise invalid("this model has no chat template; the operator can give one with --chat-template", "messages")
        prepared = [_prepared(message) for message in messages]
        if continue_final_message:
            prepared[-1]["content"] = _content_to_continue(prepared[-1]) + CONTINUE_TAG
        variables = {
            "documents": None,
            **self._variables,
            **kwargs,
            "messages": prepared,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(variables)
        except (
            Exception
        ) as error:  # templates are code of the checkpoint and may raise anything: only this request fails
            raise invalid(f"the chat template refuses these messages: {error}", "messages") from error
        return _cut_at_tag(text, prepared[-1]["content"]) if continue_final_message else text


def _prepared(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message as templates expect it: text parts joined by newlines, arguments of tool calls as objects,
    its reasoning under the names `thinking` and `reasoning_content`, no null fields.

    Raises TandemError (INVALID_ARGUMENT) for arguments that are not JSON.
    """
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in REASONING_FIELDS if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    content = prepared.get("content")
    if isinstance(content, list):
        prepared["content"] = "\n".join(part["text"] for part in content)
    calls = prepared.get("tool_calls")
    if calls:
        prepared["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return prepared


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError) as error:
            raise invalid(f"the arguments of a tool call are not JSON: {error}", "messages") from error
    return {**call, "function": function}


def _content_to_continue(message: dict[str, Any]) -> str:
    if "content" not in message:
        raise invalid("continue_final_message needs a final message with content", "messages")
    return str(message["content"])


def _cut_at_tag(text: str, tagged: str) -> str:
    """Returns `text` up to the end of the final message's content, so that the answer continues there.

    `tagged` is that content with CONTINUE_TAG at its end. Raises TandemError if the template did not render it.
    """
    place = text.rfind(CONTINUE_TAG.strip())
    if place < 0 or tagged.removesuffix(CONTINUE_TAG).strip() not in text:
        raise invalid("continue_final_message: the template does not render the final message's content", "messages")
    return text[:place] if text.startswith(CONTINUE_TAG, place) else text[:place].rstrip()
