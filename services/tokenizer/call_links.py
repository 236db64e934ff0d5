"""Finds out which tool message answers which call of a conversation, and gives both the ids and names they lack.

Clients name the call by its id, by its function's name (the older role `function`), or not at all; some templates need
the id, some the name, and most only the order. Pure: it knows no template.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]
Placed = tuple[int, Message]  # a message with its index in the request


def linked(messages: Iterable[Placed]) -> list[Placed]:
    """Returns the messages with an id at each call, and id and name at each tool message, as far as they are known.

    A tool message without an id answers the first open call of the last turn, one with a name the first of that name.
    The tool messages directly after a turn's calls stand in the order of these; others follow them.
    """
    links = _Links()
    found: list[Placed] = []
    run: list[tuple[int, Placed]] = []  # tool messages since the last other message, each with its call's place
    for index, message in messages:
        if message.get("role") == "tool":
            place, message = links.answered(message)
            run.append((place, (index, message)))
            continue
        found += _in_order(run)
        run = []
        found.append((index, links.called(message) if message.get("tool_calls") else message))
    return found + _in_order(run)


def _in_order(run: list[tuple[int, Placed]]) -> list[Placed]:
    return [placed for _, placed in sorted(run, key=lambda entry: entry[0])]


class _Links:
    """The calls so far."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._names: dict[str, str] = {}  # of all calls, by id
        self._turn: dict[str, int] = {}  # places of the last turn's calls, by id
        # Ids of those without an answer, in order: all, by name. The first of a plain dict is found behind all entries
        # that were deleted before it.
        self._open: dict[str | None, OrderedDict[str, None]] = {}

    def called(self, message: Message) -> Message:
        """Returns the message with an id at each call; it begins a turn."""
        calls = []
        self._turn, self._open = {}, {}
        for call in message["tool_calls"]:
            # Nine letters and digits are what Mistral's templates ask for.
            identity = _text(call.get("id")) or f"call{self._num_calls:05}"
            self._num_calls += 1
            self._names[identity] = call["function"]["name"]
            self._turn.setdefault(identity, len(self._turn))
            for name in (None, self._names[identity]):
                self._open.setdefault(name, OrderedDict())[identity] = None
            calls.append({**call, "id": identity})
        return {**message, "tool_calls": calls}

    def answered(self, message: Message) -> tuple[int, Message]:
        """Returns the place of the call in the last turn (after all of them: not there), and the tool message."""
        message = dict(message)
        name = _text(message.pop("name", None))
        identity = _text(message.pop("tool_call_id", None)) or next(iter(self._open.get(name, ())), None)
        if identity is not None:
            message["tool_call_id"] = identity
            for named in (None, self._names.get(identity)):
                if named in self._open:
                    self._open[named].pop(identity, None)
            name = name or self._names.get(identity)
        if name is not None:
            message["name"] = name
        return self._turn.get(identity or "", len(self._turn)), message


def _text(value: Any) -> str | None:
    """Returns the value if it is text, and not empty."""
    return value if isinstance(value, str) and value else None
