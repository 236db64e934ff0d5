"""What the probes of a chat template share: small conversations, stand-ins for a request's variables, a cache.

A probe renders a small conversation to find out what a template does with a kind of message. Its result is valid for
all requests with the same variables: templates may render a message only with one of these, or with or without tools.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Message = dict[str, Any]
# Returns the template's text of a conversation with these variables; it may raise anything.
Render = Callable[[list[Message], Mapping[str, Any]], str]
Result = TypeVar("Result")

CACHED_RESULTS = 256
SENTINEL = "tandemprobe7f3a"  # one word of letters and digits: no filter of a template changes it
TOOL_NAME = "tandemtool9b2d"
USER: Message = {"role": "user", "content": "a"}
ASSISTANT: Message = {"role": "assistant", "content": "b"}
# Instead of a request's tools and documents: what these are in detail makes no difference, and other requests use the
# result.
TOOL = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": "c", "parameters": {"type": "object", "properties": {}}},
}
DOCUMENT = {"title": "d", "text": "e", "contents": "e"}


@dataclass(frozen=True)
class ProbeVariables:
    """The template variables of the probes for one request, and the key under which caches keep their results."""

    values: Mapping[str, Any]
    digest: bytes


def probe_variables(kwargs: Mapping[str, Any], has_tools: bool) -> ProbeVariables:
    """Returns the variables for a request with the template variables `kwargs` (JSON)."""
    values = {**kwargs, "tools": [TOOL] if has_tools else None}
    if kwargs.get("documents"):
        values["documents"] = [DOCUMENT]
    return ProbeVariables(values, hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest())


def ignores_tools(render: Render, variables: ProbeVariables) -> bool:
    """Returns whether the template renders, but never the tools among `variables`."""
    is_rendered = False
    for messages in ([USER], [{"role": "system", "content": "c"}, USER]):
        try:
            text = render(messages, variables.values)
        except Exception:  # templates are code and may raise anything
            continue
        if TOOL_NAME in text:
            return False
        is_rendered = True
    return is_rendered


class ProbeCache(Generic[Result]):
    """Keeps the results of the last CACHED_RESULTS probes. Threads may share it: two may probe the same at once."""

    def __init__(self) -> None:
        self._results: dict[bytes, Result] = {}  # threads render too: changed under the lock
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes, probe: Callable[[], Result]) -> Result:
        """Returns the result under `key`; the first time, and after it was dropped, that of `probe`."""
        result = self._results.get(key)
        if result is None:
            result = probe()
            with self._lock:
                self._results[key] = result
                if len(self._results) > CACHED_RESULTS:
                    del self._results[next(iter(self._results))]
        return result
