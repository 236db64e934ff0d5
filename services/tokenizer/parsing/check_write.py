"""Checks how a table says that calls are written: that a grammar can be made of it, and that its parser can read it."""

import re
from collections.abc import Collection

from services.tokenizer.parsing.table import Read, Table, Write
from services.tokenizer.parsing.written_text import Markup

SLOTS = {"call": ("$name", "$arguments", "$parameters"), "parameter": ("$key", "$value")}


def check_write(table: Table) -> None:
    """Raises ValueError, naming the place, for a way to write calls that is wrong."""
    for index, write in enumerate(table.ways_to_write):
        place = "write" if isinstance(table.write, Write) else f"write[{index}]"
        if not table.tools:
            raise ValueError(f"{place}: calls need a name in `tools`")
        _check_slots(table, write, place)
        _check_parameter(table, write, place)
        _check_begin(table, write, place)


def _check_slots(table: Table, write: Write, place: str) -> None:
    for name in ("call", "parameter", "first", "between", "last", "content", "again"):
        found = re.findall(r"\$\w+", getattr(write, name))
        wrong = next((slot for slot in found if slot not in SLOTS.get(name, ()) or found.count(slot) > 1), None)
        if wrong is not None:
            raise ValueError(f"{place}.{name}: {wrong} cannot stand there, or stands there twice")
    has_name = any(rule.name for state in table.states.values() for event in state.on for rule in state.rules(event))
    if ("$name" in write.call) == has_name:
        raise ValueError(f"{place}.call: it has no $name, or a rule of the table says the name as well")
    if ("$arguments" in write.call) == ("$parameters" in write.call):
        raise ValueError(f"{place}.call: it has neither or both of $arguments and $parameters")
    if write.call.find("$name") > max(write.call.find("$arguments"), write.call.find("$parameters")):
        raise ValueError(f"{place}.call: the name comes first")


def _check_parameter(table: Table, write: Write, place: str) -> None:
    if ("$parameters" in write.call) != bool(write.parameter):
        raise ValueError(f"{place}.parameter: it goes with $parameters in `call`")
    if write.parameter and write.arguments != "json":
        raise ValueError(f"{place}.arguments: they are written as parameters")
    if not write.parameter:
        return
    if not 0 <= write.parameter.find("$key") < write.parameter.find("$value"):
        raise ValueError(f"{place}.parameter: it needs $key, and $value behind it")
    values = [state for state in table.states.values() if state.read is Read.VALUE]
    ends = {table.markers[event] for state in values for event in state.on}
    behind = write.parameter.split("$value", 1)[1].lstrip("\n")
    if not behind.startswith(tuple(ends) or "\0"):
        raise ValueError(f"{place}.parameter: no marker that ends a value follows $value")


def _check_begin(table: Table, write: Write, place: str) -> None:
    """Calls within text begin with a marker of content; a grammar keeps it out of other text."""
    state = table.states.get(table.start)
    if state is not None and state.read is Read.START:
        return
    events: Collection[str] = table.states["content"].on if "content" in table.states else ()
    markup = Markup(table.markers.values(), {})
    first = markup.pieces(write.first or write.call)[0]
    if first.text not in {table.markers[event] for event in events}:
        raise ValueError(f"{place}: no marker of the state content is what the calls begin with")
