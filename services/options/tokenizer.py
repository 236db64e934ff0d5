"""The settings of the tokenizer: the chat template, the formats of answers, and its addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.options.common import GrpcOptions, ListenOptions, ModelOptions, RecoveryOptions
from services.options.setting import addresses, boolean, json_object, setting
from services.options.structured import structured_outputs


@dataclass(frozen=True)
class TokenizerOptions(GrpcOptions, RecoveryOptions, ListenOptions, ModelOptions):
    """Text to token ids and back."""

    chat_template: str | None = setting(None, "chat template: a file, or the template itself", unset="the model's")
    trust_request_chat_template: bool = setting(
        False,
        "let a request bring its own `chat_template`: code of the client, in a sandbox and in a process with limits",
        parse=boolean,
    )
    chat_template_timeout: float = setting(
        5.0,
        "seconds of CPU time that one chat may take in the chat template; a longer one gets HTTP status 400",
        parse=float,
        low=0.1,
        high=3600.0,
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = setting(
        None,
        "JSON object with variables for the chat template; `chat_template_kwargs` of a request win",
        unset="none",
        parse=json_object,
    )
    allow_special_tokens_in_content: bool = setting(
        False,
        "a control token's text in a chat's content, such as `<|im_end|>`, is that token, as in vLLM; by default it is"
        " plain text",
        parse=boolean,
    )
    tool_call_parser: str | None = setting(
        None,
        "format of the model's tool calls, by vLLM's names, as in docs/tools.md; none: they stay text",
        unset="found by the model's files",
    )
    reasoning_parser: str | None = setting(
        None,
        "format of the model's reasoning, by vLLM's names, as in docs/reasoning.md; none: it stays text",
        unset="found by the model's files",
    )
    structured_outputs_config: Mapping[str, Any] | None = setting(
        None,
        "JSON object for answers in a given form: disable_any_whitespace and disable_additional_properties are the"
        " defaults of requests; max_whitespace, 1 to 1000, is the longest line break with its indentation, 40 by"
        " default; backend may be auto or guidance, and disable_fallback has no effect",
        unset="none",
        parse=structured_outputs,
    )
    tool_parser_plugin: str | None = setting(
        None, "a .toml or .json file with a table that describes one more format: docs/tools.md", unset="none"
    )
    listen: str = setting("127.0.0.1:8001", "address to listen on: host:port or unix:PATH", internal=True)
    engine: tuple[str, ...] = setting(
        ("127.0.0.1:8002",), "addresses of the engines, comma-separated", parse=addresses, internal=True
    )
