"""Chat templates: render OpenAI's messages to the prompt's text.

A template comes from the checkpoint, the operator or, if the operator trusts requests, from a request. It runs in a
sandbox (services/tokenizer/template_sandbox.py).
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from services.errors import Fatal
from services.rpc.errors import invalid
from services.tokenizer.call_history import CallHistory
from services.tokenizer.content_guard import AS_IT_IS, ContentGuard
from services.tokenizer.messages import prepared_message
from services.tokenizer.stand_ins import AsItIs
from services.tokenizer.template_probe import ProbeCache, ignores_tools, probe_variables
from services.tokenizer.template_roles import TemplateRoles
from services.tokenizer.template_sandbox import compiled
from services.tokenizer.template_texts import TemplateTexts, texts_of
from services.tokenizer.tool_schemas import filled

CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # its trailing space shows whether the template strips content


class ChatTemplate:
    def __init__(
        self,
        template: str | None,
        variables: dict[str, str],
        param: str = "messages",
        probes: ProbeCache | None = None,
        guard: ContentGuard | None = None,
    ) -> None:
        """`template`: jinja2 source; None: `render` refuses every request. `variables`: text by name, for use in the
        template, such as {"bos_token": "<s>"}. `param`: the request's field that the template's errors name.
        `probes`: where the results of probes are kept; None: a cache of its own. `guard`: None: the strings of a
        request may hold control tokens.

        Raises Fatal when the template is not valid.
        """
        self._param = param
        probes = ProbeCache() if probes is None else probes
        self._variables: dict[str, Any] = {"documents": None, **variables}
        self._calls = CallHistory(self._rendered_plainly, probes)
        self._roles = TemplateRoles(self._rendered_plainly, probes)
        try:
            self._template = compiled(template) if template is not None else None
            texts = texts_of(template) if template is not None else TemplateTexts("")
        except Exception as error:
            raise Fatal(f"the chat template is not valid: {error}") from error
        self._guard = guard.of_template(texts) if guard is not None else None

    def stand_ins(self, json_texts: Sequence[str]) -> AsItIs:
        """Returns what stands in for control tokens in the strings of a request with these JSON texts."""
        return self._guard.stand_ins(json_texts) if self._guard is not None else AS_IT_IS

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        kwargs: dict[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        stand_ins: AsItIs = AS_IT_IS,
    ) -> str:
        """Returns the prompt's text. `messages` and `tools` are OpenAI's; `kwargs`: more variables, from the request.

        `stand_ins`: the messages get them once they fit the template; tools and variables have theirs. The text still
        has them. With `continue_final_message`, the text ends with the content of the last message. Raises TandemError
        (INVALID_ARGUMENT) when there is no template, it raises an error, renders half of a surrogate pair, drops a
        message because of its role or does not render that content, the last message has none or ends in tool calls,
        or one cannot be read; NotProbedError as ProbeCache.get.
        """
        if self._template is None:
            raise invalid("this model has no chat template; the operator can give one with --chat-template", "messages")
        if continue_final_message:
            _check_final(messages[-1])
        probed = probe_variables(kwargs, bool(tools))
        fitted = self._roles.fitted(self._calls.fitted(list(map(prepared_message, messages)), probed), probed)
        prepared = stand_ins.messages(fitted)
        if continue_final_message:
            prepared[-1] = {**prepared[-1], "content": str(prepared[-1].get("content", "")) + CONTINUE_TAG}
        variables = {
            **self._variables,
            **kwargs,
            "messages": prepared,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._text(variables, stand_ins)
        if not _is_text(text):
            raise invalid("the chat template's text has half of a surrogate pair, which is no character", self._param)
        return _cut_at_tag(text, prepared[-1]["content"]) if continue_final_message else text

    def _text(self, variables: dict[str, Any], stand_ins: AsItIs) -> str:
        """Returns the template's text. Where it refuses the tools as they are, it gets them with all fields."""
        assert self._template is not None
        try:
            return self._template.render(variables)
        except MemoryError:
            raise
        except Exception as error:  # templates are code and may raise anything: only this request fails
            if variables["tools"]:
                with contextlib.suppress(Exception):
                    return self._template.render({**variables, "tools": filled(variables["tools"])})
            reason = stand_ins.restored(str(error)).text
            raise invalid(f"the chat template refuses these messages: {reason}", self._param) from error

    def ignores_tools(self, kwargs: dict[str, Any]) -> bool:
        """Returns whether the template leaves out the tools of a request with these variables. Costs two renderings."""
        return self._template is not None and ignores_tools(self._rendered_plainly, probe_variables(kwargs, True))

    def _rendered_plainly(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Returns the text of these messages alone. A template raises anything."""
        assert self._template is not None
        more = {"messages": messages, "add_generation_prompt": False}
        return self._template.render({**self._variables, **variables, **more})


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_final(message: dict[str, Any]) -> None:
    """Raises TandemError if an answer cannot continue the message."""
    if message.get("content") is None:
        raise invalid("continue_final_message needs a final message with content", "messages")
    if message.get("tool_calls") or message.get("function_call"):
        raise invalid("continue_final_message: the final message has tool calls, which end it", "messages")


def _cut_at_tag(text: str, tagged: str) -> str:
    """Returns `text` up to the end of the final message's content, so that the answer continues there.

    `tagged` is that content with CONTINUE_TAG at its end. Raises TandemError if the template did not render it.
    """
    place = text.rfind(CONTINUE_TAG.strip())
    if place < 0 or tagged.removesuffix(CONTINUE_TAG).strip() not in text:
        raise invalid("continue_final_message: the template does not render the final message's content", "messages")
    return text[:place] if text.startswith(CONTINUE_TAG, place) else text[:place].rstrip()
