"""Renders a submit's chat input: picks the template, adds the operator's variables, parses the JSON.

A request's own template is compiled in the same sandbox as the model's, but only if the operator allows it: it is code
of the client. Rendering has no limit of its own: services/tokenizer/chat_rendering.py decides where it may take place.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from services.errors import Fatal
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.tokenizer.content_guard import ContentGuard
from services.tokenizer.control_tokens import ControlToken
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.render import ChatTemplate
from services.tokenizer.stand_ins import AsItIs
from services.tokenizer.template_probe import ProbeCache

CACHED_TEMPLATES = 16
# What the request's own fields decide. services/shim/schema.py refuses these as well.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})


def reserved_name(kwargs: Mapping[str, Any]) -> str:
    """Returns the first of these names that no template variable may have; empty: none."""
    return min(RESERVED & kwargs.keys(), default="")


class RendererSettings(msgspec.Struct, frozen=True):
    """What a ChatRenderer is made of, in a form that goes to other processes.

    `template` and `variables`: as in ChatTemplate. `tool_template`: the one for requests with tools; None: `template`.
    `default_kwargs`: template variables of every request that does not set them itself. `trust_requests`: a request may
    bring its own template. `control_tokens`: those that the strings of a request must not hold; none: they may.
    """

    template: str | None
    variables: dict[str, str]
    tool_template: str | None = None
    default_kwargs: dict[str, Any] = {}
    trust_requests: bool = False
    control_tokens: tuple[ControlToken, ...] = ()


class ChatRenderer:
    def __init__(self, settings: RendererSettings, *, may_probe: bool = True) -> None:
        """`may_probe` False: `render` raises NotProbedError for variables and roles that `probes` does not have yet.

        Raises Fatal for a template that is not valid, and for a reserved name in `default_kwargs`.
        """
        self._default_kwargs = settings.default_kwargs
        if reserved := reserved_name(self._default_kwargs):
            raise Fatal(f"--default-chat-template-kwargs: may not set {reserved}")
        # One cache for both: whether there are tools is among the variables of each probe.
        self.probes = ProbeCache(may_probe=may_probe)
        variables = settings.variables
        own_texts = [*variables.values(), json.dumps(self._default_kwargs)]
        guard = ContentGuard(settings.control_tokens, own_texts) if settings.control_tokens else None
        self._template = self._tool_template = ChatTemplate(
            settings.template, variables, probes=self.probes, guard=guard
        )
        if settings.tool_template is not None:
            self._tool_template = ChatTemplate(settings.tool_template, variables, probes=self.probes, guard=guard)
        self._trust_requests = settings.trust_requests
        self.leaves_tools_out = False  # known once a request with tools was rendered with the model's template
        self._has_checked_tools = False
        # A result holds no reference to its request: a template is compiled once for all of them.
        self._request_template = functools.lru_cache(maxsize=CACHED_TEMPLATES)(
            functools.partial(_request_template, variables, guard)
        )

    def render(self, chat: text_pb2.ChatInput, tools_json: bytes) -> PromptText:
        """Returns the prompt. `tools_json`: OpenAI's `tools`; empty: none. Plain in it: control tokens, and what could
        be a part of one, that the request's strings hold (services/tokenizer/stand_ins.py).

        Raises TandemError (INVALID_ARGUMENT) as ChatTemplate.render does, for a template that is not trusted or not
        valid, and for a reserved variable; ValueError for malformed JSON; NotProbedError as ProbeCache.get.
        """
        given = chat.messages_json, tools_json, chat.template_kwargs_json, chat.documents_json
        texts = [str(one, "utf-8", "surrogatepass") for one in given]
        tools = json.loads(texts[1]) if tools_json else None
        template = self._template_for(chat, bool(tools))
        stand_ins = template.stand_ins(texts)
        kwargs = self._kwargs(texts[2], texts[3], stand_ins)
        if not chat.chat_template:
            self.probes.get(_variables_key(chat, tools_json), lambda: True)
            self._check_tools_once(bool(tools), kwargs)
        text = template.render(
            json.loads(texts[0]),
            stand_ins.value(tools),
            kwargs,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            stand_ins=stand_ins,
        )
        return stand_ins.restored(text)

    def _check_tools_once(self, has_tools: bool, kwargs: dict[str, Any]) -> None:
        if has_tools and not self._has_checked_tools:
            self._has_checked_tools = True
            self.leaves_tools_out = self._tool_template.ignores_tools(kwargs)

    def _template_for(self, chat: text_pb2.ChatInput, has_tools: bool) -> ChatTemplate:
        self.check_trusted(chat)
        if chat.chat_template:
            return self._request_template(chat.chat_template)
        return self._tool_template if has_tools else self._template

    def check_trusted(self, chat: text_pb2.ChatInput) -> None:
        """Raises TandemError (INVALID_ARGUMENT) if the chat brings a template, and may not."""
        if chat.chat_template and not self._trust_requests:
            raise invalid(
                "this server accepts no chat_template from a request; its operator can allow it with"
                " --trust-request-chat-template",
                "chat_template",
            )

    def _kwargs(self, own_json: str, documents_json: str, stand_ins: AsItIs) -> dict[str, Any]:
        """Returns the template's variables: the operator's, those of the request, its documents. null: not given."""
        kwargs = dict(self._default_kwargs)
        own: dict[str, Any] = json.loads(own_json) if own_json else {}
        if reserved := reserved_name(own):
            raise invalid(f"chat_template_kwargs may not set {reserved}", "chat_template_kwargs")
        for name, value in own.items():
            if value is not None or name not in kwargs:
                kwargs[name] = stand_ins.value(value)
        if documents_json:
            kwargs["documents"] = stand_ins.value(json.loads(documents_json))
        return kwargs


def _variables_key(chat: text_pb2.ChatInput, tools_json: bytes) -> bytes:
    """Returns a digest of what may make a template run long, whatever the messages are."""
    parts = (chat.template_kwargs_json, chat.documents_json, tools_json)
    if not any(parts):
        return b"none"
    digest = hashlib.sha256(b"variables")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _request_template(variables: dict[str, str], guard: ContentGuard | None, source: str) -> ChatTemplate:
    """Returns a request's template. Raises TandemError (INVALID_ARGUMENT) if it is not valid."""
    try:
        return ChatTemplate(source, variables, "chat_template", guard=guard)
    except Fatal as error:
        raise invalid(str(error), "chat_template") from error
