"""What the probes of a chat template share: small conversations, stand-ins for a request's variables, a cache.

A probe renders a small conversation to find out what a template does with a kind of message. Its result is valid for
all requests with the same variables: templates may render a message only with one of these, or with or without tools.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Message = dict[str, Any]
# Returns the template's text of a conversation with these variables; it may raise anything.
Render = Callable[[list[Message], Mapping[str, Any]], str]
Result = TypeVar("Result")

CACHED_RESULTS = 4096  # of one template; each takes about 200 bytes
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


class NotProbedError(Exception):
    """A rendering needs the result of a probe, and must not probe: a worker has to render it."""


class ProbeCache:
    """Keeps the CACHED_RESULTS results of one template's probes that were used last. For one thread."""

    def __init__(self, *, may_probe: bool = True) -> None:
        """`may_probe` False: all results come from `add`, for probes take long, and clients choose their variables."""
        self._may_probe = may_probe
        self._results: dict[bytes, Any] = {}  # the one used last is at the end
        self.used: dict[bytes, Any] = {}  # the results that `get` returned, if it may probe; the caller empties it

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes, probe: Callable[[], Result]) -> Result:
        """Returns the result under `key`; the first time, and after it was dropped, that of `probe`.

        Raises NotProbedError where it would probe, but must not.
        """
        found = self._results.pop(key, None)
        if not self._may_probe:
            if found is None:
                raise NotProbedError
            self._results[key] = found
            return cast(Result, found)
        if found is None:
            found = probe()
        self.add({key: found})
        self.used[key] = found
        return cast(Result, found)

    def add(self, results: Mapping[bytes, Any]) -> None:
        """Adds the results of another cache of the same template."""
        self._results.update(results)
        while len(self._results) > CACHED_RESULTS:
            del self._results[next(iter(self._results))]
