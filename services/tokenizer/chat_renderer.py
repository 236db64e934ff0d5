"""Renders a submit's chat input: picks the template, adds the operator's variables, parses the JSON.

A request's own template is compiled in the same sandbox as the model's, but only if the operator allows it: it is code
of the client. Its run time has no limit, and a process cannot set one for its threads: `render` must not be called on
an event loop for such a chat.
"""

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from services.errors import Fatal
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.tokenizer.content_guard import ContentGuard
from services.tokenizer.control_tokens import ControlToken
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.render import ChatTemplate
from services.tokenizer.stand_ins import AsItIs

log = logging.getLogger(__name__)

CACHED_TEMPLATES = 16
# What the request's own fields decide. services/shim/schema.py refuses these as well.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})


def reserved_name(kwargs: Mapping[str, Any]) -> str:
    """Returns the first of these names that no template variable may have; empty: none."""
    return min(RESERVED & kwargs.keys(), default="")


class ChatRenderer:
    def __init__(
        self,
        template: str | None,
        variables: dict[str, str],
        *,
        tool_template: str | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
        trust_requests: bool = False,
        control_tokens: Sequence[ControlToken] = (),
    ) -> None:
        """`template` and `variables`: as in ChatTemplate. `tool_template`: the one for requests with tools; None:
        `template`. `default_kwargs`: template variables of every request that does not set them itself.
        `trust_requests`: a request may bring its own template. `control_tokens`: those that the strings of a request
        must not hold; none: they may hold any.

        Raises Fatal for a template that is not valid, and for a reserved name in `default_kwargs`.
        """
        self._default_kwargs = dict(default_kwargs or {})
        if reserved := reserved_name(self._default_kwargs):
            raise Fatal(f"--default-chat-template-kwargs: may not set {reserved}")
        own_texts = [*variables.values(), json.dumps(self._default_kwargs)]
        guard = ContentGuard(control_tokens, own_texts) if control_tokens else None
        self._template = self._tool_template = ChatTemplate(template, variables, guard=guard)
        if tool_template is not None:
            self._tool_template = ChatTemplate(tool_template, variables, guard=guard)
        self._trust_requests = trust_requests
        self._has_checked_tools = False
        # A result holds no reference to its request: a template is compiled once for all of them.
        self._request_template = functools.lru_cache(maxsize=CACHED_TEMPLATES)(
            functools.partial(_request_template, variables, guard)
        )

    def render(self, chat: text_pb2.ChatInput, tools_json: bytes) -> PromptText:
        """Returns the prompt. `tools_json`: OpenAI's `tools`; empty: none. Plain in it: control tokens, and what could
        be a part of one, that the request's strings hold (services/tokenizer/stand_ins.py).

        Raises TandemError (INVALID_ARGUMENT) as ChatTemplate.render does, for a template that is not trusted or not
        valid, and for a reserved variable; ValueError for malformed JSON.
        """
        given = chat.messages_json, tools_json, chat.template_kwargs_json, chat.documents_json
        texts = [str(one, "utf-8", "surrogatepass") for one in given]
        tools = json.loads(texts[1]) if tools_json else None
        template = self._template_for(chat, bool(tools))
        stand_ins = template.stand_ins(texts)
        kwargs = self._kwargs(texts[2], texts[3], stand_ins)
        if tools and not chat.chat_template:
            self._check_tools_once(kwargs)
        text = template.render(
            json.loads(texts[0]),
            stand_ins.value(tools),
            kwargs,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            stand_ins=stand_ins,
        )
        return stand_ins.restored(text)

    def _check_tools_once(self, kwargs: dict[str, Any]) -> None:
        """Logs, at the first request with tools, that the model's template leaves them out; the request goes on."""
        if self._has_checked_tools:
            return
        self._has_checked_tools = True
        if self._tool_template.ignores_tools(kwargs):
            log.warning(
                "the chat template leaves tools out of the prompt, so the model does not know of them;"
                " give a template that renders them with --chat-template"
            )

    def _template_for(self, chat: text_pb2.ChatInput, has_tools: bool) -> ChatTemplate:
        if not chat.chat_template:
            return self._tool_template if has_tools else self._template
        if not self._trust_requests:
            raise invalid(
                "this server accepts no chat_template from a request; its operator can allow it with"
                " --trust-request-chat-template",
                "chat_template",
            )
        return self._request_template(chat.chat_template)

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


def _request_template(variables: dict[str, str], guard: ContentGuard | None, source: str) -> ChatTemplate:
    """Returns a request's template. Raises TandemError (INVALID_ARGUMENT) if it is not valid."""
    try:
        return ChatTemplate(source, variables, "chat_template", guard)
    except Fatal as error:
        raise invalid(str(error), "chat_template") from error
