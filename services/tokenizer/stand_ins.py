"""Stand-ins: private-use code points in place of the characters of control tokens in a request's strings.

They go through a chat template like letters: one for each distinct character, so that trimming, slicing and dumping as
JSON keep them, and none splits, strips or compares them. Afterwards the characters come back, with the spans where they
are. A request's stand-ins occur neither in its own strings nor in its template.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from services.rpc.errors import invalid
from services.tokenizer.control_scan import ControlScan
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.template_probe import Message

FIRST, LAST = 0xE000, 0xF8FF  # the private-use area of the Basic Multilingual Plane
# A code point itself, or as JSON and Python's notation escape it.
_USED = re.compile("[\ue000-\uf8ff]|(?<=u)(?:e[0-9a-f]|f[0-8])[0-9a-f]{2}", re.IGNORECASE)


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


class StandIns(AsItIs):
    """Those of one request."""

    def __init__(
        self, scan: ControlScan, assistant: ControlScan, role: ControlScan, texts: Callable[[], Iterator[str]]
    ) -> None:
        """`scan`: for what all but the assistant says; `assistant`: for its messages; `role`: for names of roles.
        `texts`: all that the stand-ins must not occur in."""
        self._scan, self._assistant, self._role = scan, assistant, role
        self._texts = texts
        self._free: Iterator[int] | None = None
        self._table: dict[int, int] = {}  # from characters to their stand-ins

    def value(self, value: Any) -> Any:
        """As of AsItIs. Raises TandemError (INVALID_ARGUMENT) if the request has nearly all private-use characters."""
        return self._value(value, self._scan)

    def messages(self, messages: list[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def _message(self, message: Message) -> Message:
        scan = self._assistant if message.get("role") == "assistant" else self._scan
        return {
            self._value(name, scan): self._value(value, self._role if name == "role" else scan)
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
        """Returns the text with stand-ins in the spans; whitespace stays, so that templates can trim it."""
        parts: list[str] = []
        last = 0
        for start, end in spans:
            part = text[start:end]
            for character in set(part):
                if ord(character) not in self._table and not character.isspace():
                    self._table[ord(character)] = self._next()
            parts += text[last:start], part.translate(self._table)
            last = end
        return "".join([*parts, text[last:]])

    def _next(self) -> int:
        if self._free is None:
            used = {match.group().lower() for text in self._texts() for match in _USED.finditer(text)}
            self._free = (code for code in range(FIRST, LAST + 1) if not {chr(code), f"{code:x}"} & used)
        code = next(self._free, None)
        if code is None:
            raise invalid("the request has control tokens beside nearly all private-use characters", "messages")
        return code

    def restored(self, text: str) -> PromptText:
        if not self._table:
            return PromptText(text)
        origin = {stand_in: chr(code) for code, stand_in in self._table.items()}
        escapes = "|".join(f"{code:x}" for code in origin)
        pattern = re.compile(f"[{''.join(map(chr, origin))}]+|\\\\u({escapes})")
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        place = last = 0
        for match in pattern.finditer(text):
            escaped = match.group(1)
            part = origin[int(escaped, 16)] if escaped else match.group().translate(origin)
            parts += text[last : match.start()], part
            start = place + match.start() - last
            place, last = start + len(part), match.end()
            if spans and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, place))
        return PromptText("".join([*parts, text[last:]]), tuple(spans))


def _differs(one: object, other: object) -> bool:
    return one is not other
