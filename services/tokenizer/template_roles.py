"""What a chat template does with the roles of messages, found out by rendering small conversations.

A template that does not know a role may leave its messages out. So a developer message becomes a system message where
the template knows only that one, and a message that would be left out is refused. All other roles are the template's
business: what it renders or refuses itself, passes. Results are cached for each role, place and set of variables:
templates may render a role only with one of these, or with or without tools.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from services.rpc.errors import invalid

Message = dict[str, Any]

CACHED_FATES = 256
SENTINEL = "tandemprobe7f3a"  # one word of letters and digits: no filter of a template changes it
USER: Message = {"role": "user", "content": "a"}
ASSISTANT: Message = {"role": "assistant", "content": "b"}
CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": {}}}],
}
# Instead of a request's tools and documents: what these are in detail makes no difference to a role, and other requests
# use the result.
TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "c", "parameters": {"type": "object", "properties": {}}},
}
DOCUMENT = {"title": "d", "text": "e", "contents": "e"}


class Fate(Enum):
    """What becomes of a message's content because of its role."""

    RENDERED = "rendered"
    DROPPED = "dropped"
    REFUSED = "refused"  # the template raises an error wherever the role stands


class TemplateRoles:
    def __init__(self, render: Callable[[list[Message], Mapping[str, Any]], str]) -> None:
        """`render` returns the template's text of a conversation with these variables; it may raise anything."""
        self._render = render
        self._fates: dict[bytes, Fate] = {}  # threads render too: changed under the lock
        self._lock = threading.Lock()

    def fitted(self, messages: list[Message], kwargs: Mapping[str, Any], has_tools: bool) -> list[Message]:
        """Returns the messages with roles that the template renders with the request's variables `kwargs` (JSON).

        Raises TandemError (INVALID_ARGUMENT) for a message that the template would leave out, with its index. A message
        without text has nothing to lose.
        """
        variables = {**kwargs, "tools": [TOOL] if has_tools else None}
        if kwargs.get("documents"):
            variables["documents"] = [DOCUMENT]
        digest = hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).digest()
        fates = _Fates(self, variables, digest)
        return [fates.fitted(index, message) for index, message in enumerate(messages)]

    def fate(self, role: str, is_first: bool, variables: Mapping[str, Any], digest: bytes) -> Fate:
        """Returns the fate of a role in a place; `digest` is that of the variables. It is probed once."""
        key = hashlib.sha256(digest + bytes([is_first]) + role.encode(errors="surrogatepass")).digest()
        fate = self._fates.get(key)
        if fate is None:
            fate = self._probe(role, is_first, variables)
            with self._lock:
                self._fates[key] = fate
                if len(self._fates) > CACHED_FATES:
                    del self._fates[next(iter(self._fates))]
        return fate

    def _probe(self, role: str, is_first: bool, variables: Mapping[str, Any]) -> Fate:
        """Returns RENDERED if any conversation shows the message's content, DROPPED if none does, but one renders."""
        fate = Fate.REFUSED
        for messages in _conversations({"role": role, "content": SENTINEL}, is_first=is_first):
            try:
                text = self._render(messages, variables)
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
    variables: Mapping[str, Any]
    digest: bytes

    def fitted(self, index: int, message: Message) -> Message:
        role = message.get("role")
        if not isinstance(role, str):
            return message
        is_first = index == 0
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
        return self.roles.fate(role, is_first, self.variables, self.digest)


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
