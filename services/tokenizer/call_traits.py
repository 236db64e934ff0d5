"""What a chat template does with tool calls and their results, found out by rendering small conversations.

Templates differ: some expect the arguments as an object, some as JSON text; some take one call a message; some raise
for an id that is not nine characters long, or for content beside reasoning; some leave calls or results out. It only
finds out: services/tokenizer/call_history.py makes the messages fit.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.tokenizer.template_probe import ASSISTANT, SENTINEL, USER, Message, ProbeVariables, Render

ARGUMENTS = {"probekey": SENTINEL, "other": [None, True]}  # in Python's notation it is no JSON
JSON = json.dumps(ARGUMENTS)
BROKEN = '{"probekey": "' + SENTINEL
ID = "probe0001"
OTHER_ID = "probe0002"
LONG_ID = "call_0123456789abcdefghijABCD"  # as OpenAI's
RESULT = "tandemresult5c1e"


@dataclass(frozen=True)
class CallTraits:
    """A template's handling of calls (the first seven mean nothing where `renders_calls` is false)."""

    renders_calls: bool
    arguments_are_text: bool = False  # it wants JSON text, not an object
    keeps_text: bool = False  # arguments that are text appear in the prompt as they are, JSON or not
    renders_several: bool = True  # more than one call a message
    renders_with_content: bool = True  # calls also in a message with content (whether the content too, is its business)
    takes_reasoning_and_content: bool = True  # beside calls
    takes_any_id: bool = True  # false: nine letters and digits
    empty_content: str | None = ""  # of a message with calls and no content
    renders_results: bool = False  # tool messages after a call
    renders_bare_results: bool = False  # tool messages after an assistant's text


def call_traits(render: Render, variables: ProbeVariables) -> CallTraits:
    """Returns the traits of the template with these variables. About twelve renderings; nothing is raised."""
    return _Probe(render, variables).traits()


def _call(arguments: Any, identity: str = ID) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": "probe", "arguments": arguments}}


def _result(identity: str = ID) -> Message:
    return {"role": "tool", "tool_call_id": identity, "name": "probe", "content": RESULT}


@dataclass(frozen=True)
class _Probe:
    render: Render
    variables: ProbeVariables

    def traits(self) -> CallTraits:
        renders_bare_results = self._renders_result(ASSISTANT)
        for empty, arguments in self._forms():
            calling = {"role": "assistant", "content": empty, "tool_calls": [_call(arguments)]}
            content = {**calling, "content": "d"}
            return CallTraits(
                renders_calls=True,
                arguments_are_text=isinstance(arguments, str),
                keeps_text=BROKEN in self._turn({**calling, "tool_calls": [_call(BROKEN)]}),
                renders_several=self._renders_several(calling, arguments),
                renders_with_content=SENTINEL in self._turn(content),
                takes_reasoning_and_content=SENTINEL
                in self._turn({**content, "thinking": "e", "reasoning_content": "e"}),
                takes_any_id=SENTINEL
                in self._turn({**calling, "tool_calls": [_call(arguments, LONG_ID)]}, _result(LONG_ID)),
                empty_content=empty,
                renders_results=self._renders_result(calling),
                renders_bare_results=renders_bare_results,
            )
        return CallTraits(renders_calls=False, renders_bare_results=renders_bare_results)

    def _forms(self) -> Iterator[tuple[str | None, Any]]:
        """Yields the content and the arguments with which calls are rendered, the best first."""
        for empty in ("", None):
            calling = {"role": "assistant", "content": empty}
            objects = self._turn({**calling, "tool_calls": [_call(ARGUMENTS)]})
            if SENTINEL in objects and repr(ARGUMENTS) not in objects:
                yield empty, ARGUMENTS
            text = self._turn({**calling, "tool_calls": [_call(JSON)]})
            if JSON in text:
                yield empty, JSON
            if SENTINEL in objects:
                yield empty, ARGUMENTS
            if SENTINEL in text:
                yield empty, JSON

    def _renders_several(self, calling: Message, arguments: Any) -> bool:
        several = {**calling, "tool_calls": [_call(arguments), _call(arguments, OTHER_ID)]}
        text = self._turn(several, _result(), _result(OTHER_ID))
        return text.count(SENTINEL) > self._turn(calling).count(SENTINEL)

    def _renders_result(self, before: Message) -> bool:
        """Returns whether a result after this message is rendered. An answer follows it: some templates count turns."""
        return RESULT in (self._text([USER, before, _result(), ASSISTANT, USER]) or "")

    def _turn(self, calling: Message, *results: Message) -> str:
        """Returns the text of a conversation with calls, with their results if the template takes these; empty: it
        refuses the calls."""
        return self._text([USER, calling, *(results or [_result()])]) or self._text([USER, calling]) or ""

    def _text(self, messages: list[Message]) -> str | None:
        try:
            return self.render(messages, self.variables.values)
        except Exception:  # templates are code and may raise anything
            return None
