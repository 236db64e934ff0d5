"""Stand-ins: private-use code points in place of the characters of control tokens in a request's strings.

They go through a chat template like letters: one for each distinct character, so that trimming, slicing and dumping as
JSON keep them, and none splits, strips or compares them. Afterwards the characters come back, with the spans where they
are. A request's stand-ins occur neither in its own strings nor in its template.
"""

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from services.rpc.errors import invalid
from services.tokenizer.control_scan import ControlScan
from services.tokenizer.messages import REASONING_FIELDS
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.template_probe import Message

FIRST, LAST = 0xE000, 0xF8FF  # the private-use area of the Basic Multilingual Plane
# A code point itself, or as JSON and Python's notation escape it.
_USED = re.compile(r"[\\\ue000-\uf8ff](?:(?<=\\)u([ef][0-9a-f]{3}))?", re.IGNORECASE)


class AsItIs:
    """Strings of a request without control tokens: nothing stands in for them."""

    def value(self, value: Any) -> Any:
        """Returns a JSON value with stand-ins in all strings and keys. What has none, is the same object."""
        return value

    def messages(self, messages: list[Message]) -> list[Message]:
        """Returns prepared messages with stand-ins."""
        return messages

    def restored(self, text: str) -> PromptText:
        """Returns a template's text with the characters that the stand-ins stand for."""
        return PromptText(text)


class _Characters(dict[int, int]):
    """Stand-ins by character. A character gets its own at its first use; whitespace stands for itself, so that
    templates can trim it."""

    def __init__(self, own: Set[str], texts: Iterable[str]) -> None:
        super().__init__()
        self._free = _free(own, texts)

    def __missing__(self, code: int) -> int:
        if chr(code).isspace():
            return code
        stand_in = next(self._free, None)
        if stand_in is None:
            raise invalid("the request has control tokens beside nearly all private-use characters", "messages")
        self[code] = stand_in
        return stand_in


class StandIns(AsItIs):
    """Those of one request. Its methods raise TandemError (INVALID_ARGUMENT) where no private-use characters are left
    for it."""

    def __init__(
        self,
        scan: ControlScan,
        assistant: ControlScan,
        role: ControlScan,
        own: Set[str],
        texts: Iterable[str],
    ) -> None:
        """`scan`: for most strings; `assistant`: for the assistant's content and reasoning; `role`: for names of roles.
        `own`: the private-use characters of the template, as `private_use`; `texts`: all text of the request."""
        self._scan, self._assistant, self._role = scan, assistant, role
        self._characters = _Characters(own, texts)

    def value(self, value: Any) -> Any:
        return self._value(value, self._scan)

    def messages(self, messages: list[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def restored(self, text: str) -> PromptText:
        if not self._characters:
            return PromptText(text)
        origin = {stand_in: chr(code) for code, stand_in in self._characters.items()}
        if "\\ue" in text or "\\uf" in text:
            escapes = "|".join(f"{stand_in:x}" for stand_in in origin)
            text = re.sub(rf"\\u({escapes})", lambda match: chr(int(match.group(1), 16)), text)
        stand_ins = re.compile(f"[{''.join(map(chr, origin))}]+")
        spans = tuple(match.span() for match in stand_ins.finditer(text))
        return PromptText(stand_ins.sub(lambda match: match.group().translate(origin), text), spans)

    def _message(self, message: Message) -> Message:
        scans = {"role": self._role}
        if message.get("role") == "assistant":
            scans |= dict.fromkeys(("content", *REASONING_FIELDS), self._assistant)
        return {
            self._value(name, self._scan): self._value(value, scans.get(name, self._scan))
            for name, value in message.items()
        }

    def _value(self, value: Any, scan: ControlScan) -> Any:
        if isinstance(value, str):
            spans = scan.spans(value)
            return self._hidden(value, spans) if spans else value
        if isinstance(value, list):
            items = []
            for one in value:  # no comprehension: half as many frames for values within values
                items.append(self._value(one, scan))
            return items if any(map(_differs, items, value)) else value
        if isinstance(value, dict):
            fields = {}
            for name, one in value.items():
                fields[self._value(name, scan)] = self._value(one, scan)
            same = not any(map(_differs, fields, value)) and not any(map(_differs, fields.values(), value.values()))
            return value if same else fields
        return value

    def _hidden(self, text: str, spans: Sequence[tuple[int, int]]) -> str:
        """Returns the text with stand-ins in the spans."""
        parts: list[str] = []
        last = 0
        for start, end in spans:
            parts += text[last:start], text[start:end].translate(self._characters)
            last = end
        return "".join([*parts, text[last:]])


def private_use(texts: Iterable[str]) -> frozenset[str]:
    """Returns the private-use characters of texts, and the hexadecimal digits of those that are escaped."""
    found = (match for text in texts for match in _USED.finditer(text))
    return frozenset((match.group(1) or match.group()).lower() for match in found)


def _free(own: Set[str], texts: Iterable[str]) -> Iterator[int]:
    """Yields the code points that neither `own` nor the texts have."""
    used = own | private_use(texts)
    yield from (code for code in range(FIRST, LAST + 1) if not {chr(code), f"{code:x}"} & used)


def _differs(one: object, other: object) -> bool:
    return one is not other
