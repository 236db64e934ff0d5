"""Makes the tool calls and results of a conversation fit the chat template, so that none is lost and none is refused.

What the template takes, it gets in the form it wants: arguments as an object or as JSON text, one call or several a
message, its kind of ids. The rest becomes text of messages that every template renders, so the model still sees it:

- The calls of a message become lines of its content, `{"name": …, "arguments": …}`, where the template leaves calls out
  (also if only because there is content), or where arguments are no JSON object, which a model that breaks off or
  errs produces, and the template does not print arguments as they are.
- A result becomes a user message, `Result of NAME:` and its text, where the template leaves tool messages out or
  refuses them there. Consecutive ones become one message: some templates insist on alternating roles.

Content beside calls, and reasoning of earlier turns, are the template's business: many leave them out on purpose.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from services.tokenizer.call_links import Placed, linked
from services.tokenizer.call_traits import CallTraits, call_traits
from services.tokenizer.messages import without_reasoning
from services.tokenizer.template_probe import Message, ProbeCache, ProbeVariables, Render

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ID_LENGTH = 9  # Mistral's templates ask for nine letters and digits


class CallHistory:
    def __init__(self, render: Render, results: ProbeCache) -> None:
        self._render = render
        self._results = results

    def fitted(self, messages: list[Message], variables: ProbeVariables) -> list[Placed]:
        """Returns prepared messages (services/tokenizer/messages.py) as the template takes them, each with the index
        of the message that it comes from. The template is probed once for each set of variables, at its first call.
        """
        placed = list(enumerate(messages))
        if not any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
            return placed
        traits = self._results.get(variables.digest, lambda: call_traits(self._render, variables))
        return list(_merged(_Fitting(traits).fitted(linked(placed))))


@dataclass(frozen=True)
class _AsText:
    """A result that no tool message can carry."""

    text: str


@dataclass(frozen=True)
class _Fitting:
    traits: CallTraits

    def fitted(self, messages: list[Placed]) -> Iterator[tuple[int, Message | _AsText]]:
        position = 0
        while position < len(messages):
            index, message = messages[position]
            position += 1
            if message.get("role") == "tool":
                yield index, self._result(message, self.traits.renders_bare_results)
            elif message.get("tool_calls"):
                first = position
                while position < len(messages) and messages[position][1].get("role") == "tool":
                    position += 1
                yield from self._turn(index, message, messages[first:position])
            else:
                yield index, message

    def _turn(self, index: int, message: Message, results: list[Placed]) -> Iterator[tuple[int, Message | _AsText]]:
        """Yields a message with calls and the tool messages that follow it."""
        if self._needs_text(message):
            yield index, _with_calls_as_text(message)
            for place, result in results:
                yield place, self._result(result, self.traits.renders_bare_results)
            return
        calls = message["tool_calls"]
        parts = [calls] if self.traits.renders_several else [[call] for call in calls]
        last = len(parts) - 1
        owners = {call["id"]: number for number, part in enumerate(parts) for call in part}
        answers: list[list[Placed]] = [[] for _ in parts]
        for entry in results:
            answers[owners.get(entry[1].get("tool_call_id"), last)].append(entry)
        for number, part in enumerate(parts):
            yield index, self._calling(message if number == 0 else {"role": message["role"]}, part)
            for place, result in answers[number]:
                yield place, self._result(result, self.traits.renders_results)

    def _needs_text(self, message: Message) -> bool:
        traits = self.traits
        if not traits.renders_calls or (message.get("content") and not traits.renders_with_content):
            return True
        return not traits.keeps_text and any(_arguments(call) is None for call in message["tool_calls"])

    def _calling(self, message: Message, calls: list[dict[str, Any]]) -> Message:
        """Returns the message with these calls, in the form that the template wants."""
        content = message.get("content") or self.traits.empty_content
        reasoning = message.get("reasoning_content")
        if reasoning and content and not self.traits.takes_reasoning_and_content:
            message, content = without_reasoning(message), f"{reasoning}\n\n{content}"
        return {**message, "content": content, "tool_calls": [self._call(call) for call in calls]}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = _arguments(call)
        is_text = arguments is None or self.traits.arguments_are_text
        function = {**call["function"], "arguments": _arguments_text(call) if is_text else arguments}
        return {**call, "id": self._id(call["id"]), "function": function}

    def _result(self, message: Message, is_rendered: bool) -> Message | _AsText:
        if not is_rendered:
            return _AsText(f"Result of {message.get('name') or 'a tool'}:\n{message.get('content', '')}")
        identity = message.get("tool_call_id")
        return {**message, "tool_call_id": self._id(identity)} if isinstance(identity, str) else message

    def _id(self, identity: str) -> str:
        """Returns an id that the template takes: the same for the same id, so that results still find their calls."""
        if self.traits.takes_any_id or (len(identity) == ID_LENGTH and identity.isascii() and identity.isalnum()):
            return identity
        return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:ID_LENGTH]


def _merged(entries: Iterable[tuple[int, Message | _AsText]]) -> Iterator[Placed]:
    """Yields the messages; consecutive results as text are one message of the user."""
    texts: list[str] = []
    place = 0
    for index, entry in entries:
        if isinstance(entry, _AsText):
            texts.append(entry.text)
            place = index
            continue
        if texts:
            yield place, {"role": "user", "content": "\n\n".join(texts)}
            texts = []
        yield index, entry
    if texts:
        yield place, {"role": "user", "content": "\n\n".join(texts)}


def _with_calls_as_text(message: Message) -> Message:
    lines = [
        f'{{"name": {json.dumps(call["function"]["name"], ensure_ascii=False)}, "arguments": {_arguments_text(call)}}}'
        for call in message["tool_calls"]
    ]
    if message.get("content"):
        lines.insert(0, str(message["content"]))
    text = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**text, "content": "\n".join(lines)}


def _arguments(call: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the call's arguments as an object; None: they are none, or have half of a surrogate pair, which no prompt
    can have but as the escape that it is in the text. A call without arguments has an empty object."""
    text = arguments = call["function"].get("arguments")
    if isinstance(text, str) and text:
        try:
            arguments = json.loads(text)
            if SURROGATE.search(text):
                json.dumps(arguments, ensure_ascii=False).encode()  # raises ValueError for half of a pair
        except (ValueError, RecursionError):
            return None
    elif not arguments:
        return {}
    return arguments if isinstance(arguments, dict) else None


def _arguments_text(call: dict[str, Any]) -> str:
    """Returns the call's arguments as the client's text, if it sent text, or as JSON."""
    arguments = call["function"].get("arguments")
    return (arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)) or "{}"
