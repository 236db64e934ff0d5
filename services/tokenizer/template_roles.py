"""What a chat template does with the roles of messages, found out by rendering small conversations.

A template that does not know a role may leave its messages out. So a developer message becomes a system message where
the template knows only that one, and a message that would be left out is refused. All other roles are the template's
business: what it renders or refuses itself, passes. Results are cached for each role, place and set of variables.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from services.rpc.errors import invalid
from services.tokenizer.template_probe import ASSISTANT, SENTINEL, USER, Message, ProbeCache, ProbeVariables, Render

CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": {}}}],
}


class Fate(Enum):
    """What becomes of a message's content because of its role."""

    RENDERED = "rendered"
    DROPPED = "dropped"
    REFUSED = "refused"  # the template raises an error wherever the role stands


class TemplateRoles:
    def __init__(self, render: Render, results: ProbeCache) -> None:
        self._render = render
        self._results = results

    def fitted(self, messages: Iterable[tuple[int, Message]], variables: ProbeVariables) -> list[Message]:
        """Returns the messages with roles that the template renders. `messages`: each with its index in the request.

        Raises TandemError (INVALID_ARGUMENT) for a message that the template would leave out, with its index. A message
        without text has nothing to lose.
        """
        fates = _Fates(self, variables)
        return [fates.fitted(place == 0, index, message) for place, (index, message) in enumerate(messages)]

    def fate(self, role: str, is_first: bool, variables: ProbeVariables) -> Fate:
        """Returns the fate of a role in a place. It is probed once."""
        key = hashlib.sha256(variables.digest + bytes([is_first]) + role.encode(errors="surrogatepass")).digest()
        return self._results.get(key, lambda: self._probe(role, is_first, variables))

    def _probe(self, role: str, is_first: bool, variables: ProbeVariables) -> Fate:
        """Returns RENDERED if any conversation shows the message's content, DROPPED if none does, but one renders."""
        fate = Fate.REFUSED
        for messages in _conversations({"role": role, "content": SENTINEL}, is_first=is_first):
            try:
                text = self._render(messages, variables.values)
            except Exception:  # strict templates raise where roles do not alternate: this says nothing about the role
                continue
            if SENTINEL in text:
                return Fate.RENDERED
            fate = Fate.DROPPED
        return fate


@dataclass(frozen=True)
class _Fates:
    """The fates with one request's variables."""

    roles: TemplateRoles
    variables: ProbeVariables

    def fitted(self, is_first: bool, index: int, message: Message) -> Message:
        role = message.get("role")
        if not isinstance(role, str):
            return message
        if role == "developer" and self._fate(role, is_first) is not Fate.RENDERED:
            message = {**message, "role": "system"}
        if message.get("content") and self._fate(message["role"], is_first) is Fate.DROPPED:
            raise invalid(
                f"messages[{index}]: the chat template renders no message of role {role!r}"
                f" {'at the beginning' if is_first else 'after the first message'}",
                f"messages.{index}.role",
            )
        return message

    def _fate(self, role: str, is_first: bool) -> Fate:
        return self.roles.fate(role, is_first, self.variables)


def _conversations(probe: Message, *, is_first: bool) -> list[list[Message]]:
    """Returns conversations with `probe`, as varied as templates expect: alternating, after a tool call, at the end."""
    if is_first:
        return [[probe], [probe, USER], [probe, ASSISTANT], [probe, ASSISTANT, USER], [probe, USER, ASSISTANT, USER]]
    result = {**probe, "tool_call_id": "probe0001", "name": "probe"}
    return [
        [USER, probe],
        [USER, ASSISTANT, probe],
        [USER, probe, USER],
        [USER, ASSISTANT, probe, USER],
        [USER, ASSISTANT, USER, probe],
        [USER, CALLING, result],
        [USER, CALLING, result, ASSISTANT],
    ]
