"""Checks a table of a format: that it says something in every state, and that the parser always gets on.

The messages name the place in the table, for the author of a plugin.
"""

import re
import warnings
from collections.abc import Iterator
from enum import StrEnum

from services.tokenizer.parsing.check_write import check_write
from services.tokenizer.parsing.table import CONTENT, DONE, ENDS_BY_ITSELF, REASONING, Read, Rule, State, Table

NAMES = frozenset({Read.NAME, Read.HEADER})  # what is read there can name a call or a parameter
STARTS = frozenset({Read.CONTENT, Read.REASONING, Read.START, Read.HEADER})
NONE = "none"  # the name that selects no format
LEFT_BY_TEXT = frozenset({Read.CONTENT, Read.REASONING, Read.START, Read.LAYOUT})  # content follows without a rule
FIRST = {Read.JSON: "{", Read.JSON_CALL: "{", Read.PYTHON_CALLS: "["}  # with what the text in a state begins


class Open(StrEnum):
    """What a rule has begun, and none has ended."""

    NOTHING = "nothing"
    CALL = "a call"
    PARAMETER = "a parameter"


NEEDS = {Read.JSON: Open.CALL, Read.VALUE: Open.PARAMETER}


def check(table: Table) -> None:
    """Raises ValueError, naming the place, for a table that is wrong."""
    _check_names(table)
    _check_markers(table)
    for name, state in table.states.items():
        _check_state(table, name, state)
    if table.start not in _states(table):
        raise ValueError(f"start: there is no state {table.start!r}")
    if _states(table)[table.start].read not in STARTS:
        raise ValueError(f"start: no answer can begin in a state that reads {_states(table)[table.start].read.value}")
    _check_use(table)
    _check_calls(table)
    check_write(table)


def _check_names(table: Table) -> None:
    names = (*table.tools, *table.reasoning)
    if not names:
        raise ValueError("it has a name neither in `tools` nor in `reasoning`")
    for name in names:
        if not re.fullmatch(r"[\w.+-]+", name) or name == NONE:
            raise ValueError(f"{name!r} cannot be the name of a format")
    if table.thinking is not None and not table.reasoning:
        raise ValueError("thinking: the table has no name in `reasoning`")
    if table.thinking is not None and not table.thinking.end:
        raise ValueError("thinking.end: it is empty")


def _check_markers(table: Table) -> None:
    texts: dict[str, str] = {}
    for name, text in table.markers.items():
        if name == DONE:
            raise ValueError(f"markers.{name}: the name means the end of a state's text")
        if not text or text[0].isspace():
            raise ValueError(f"markers.{name}: it is empty or begins with whitespace, which is layout")
        if text in texts:
            raise ValueError(f"markers.{name}: it has the text of {texts[text]}")
        texts[text] = name
    if unknown := sorted({*table.turn} - table.markers.keys()):
        raise ValueError(f"turn: there is no marker {unknown[0]!r}")


def _states(table: Table) -> dict[str, State]:
    """Returns the table's states, and those that need not be written down."""
    return {CONTENT: State(Read.CONTENT), REASONING: State(Read.REASONING)} | table.states


def _rules(state: State) -> Iterator[tuple[str, Rule]]:
    for event in state.on:
        yield from ((event, rule) for rule in state.rules(event))


def _check_state(table: Table, name: str, state: State) -> None:
    place = f"states.{name}"
    if name == CONTENT and state.read is not Read.CONTENT:
        raise ValueError(f"{place}.read: this state reads {CONTENT}")
    if (name == REASONING) != (state.read is Read.REASONING):
        raise ValueError(f"{place}.read: the state {REASONING!r}, and no other, reads {REASONING}")
    if state.known and state.read not in (Read.JSON_CALL, Read.PYTHON_CALLS):
        raise ValueError(f"{place}.known: it is for json_call and python_calls")
    if state.trim and state.read is not Read.VALUE:
        raise ValueError(f"{place}.trim: it is for value")
    if state.read in ENDS_BY_ITSELF and DONE not in state.on:
        raise ValueError(f"{place}.on: {state.read.value} ends by itself, so `done` needs a rule")
    for event in state.on:
        if event != DONE and event not in table.markers:
            raise ValueError(f"{place}.on: there is no marker {event!r}")
        if not state.rules(event):
            raise ValueError(f"{place}.on.{event}: it has no rule")
    for event, rule in _rules(state):
        _check_rule(table, state, event, rule, f"{place}.on.{event}")


def _check_rule(table: Table, state: State, event: str, rule: Rule, place: str) -> None:
    target = _states(table).get(rule.to)
    if target is None:
        raise ValueError(f"{place}: there is no state {rule.to!r}")
    if event == DONE and (state.read not in ENDS_BY_ITSELF or rule.when or rule.keep or {*rule.do} - {"end"}):
        raise ValueError(f'{place}: `done` is the end of a JSON object or a Python list; it may only `do` "end"')
    if rule.when and state.read not in NAMES:
        raise ValueError(f"{place}.when: {state.read.value} reads no name")
    if rule.when:
        _check_pattern(rule.when, f"{place}.when")
    if rule.keep and not _can_begin(table, target, table.markers[event]):
        raise ValueError(f"{place}.keep: what {rule.to} reads, {target.read.value}, cannot begin with this marker")
    if rule.name and ("call" not in rule.do or rule.when):
        raise ValueError(f"{place}.name: it is for a rule without `when` that begins a call")
    if {"call", "key"} & {*rule.do} and state.read not in NAMES and not rule.name:
        raise ValueError(f"{place}.do: {state.read.value} reads no name")
    if "call" in rule.do and not table.tools:
        raise ValueError(f"{place}.do: calls need a name in `tools`")


def _can_begin(table: Table, state: State, text: str) -> bool:
    """Whether a state's text may begin with a marker that another state keeps. It must take some of it, or the parser
    would not get on."""
    if state.read in FIRST:
        return text[0] == FIRST[state.read]
    markers = [table.markers.get(event, "") for event in state.on]
    clash = any(marker.startswith(text) or text.startswith(marker) for marker in markers)
    return state.read in (*NAMES, Read.SKIP, Read.VALUE) and not clash


def _check_pattern(pattern: str, place: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValueError(f"{place}: not a regular expression: {error}") from error


def _check_use(table: Table) -> None:
    """Every marker is used, every state is reached, and content or reasoning is reached from it."""
    states = _states(table)
    used = {event for state in table.states.values() for event in state.on} | {*table.turn}
    if unused := sorted(table.markers.keys() - used):
        raise ValueError(f"markers.{unused[0]}: no state has a rule for it")
    reached = _closure({name: {rule.to for _, rule in _rules(state)} for name, state in states.items()}, _roots(table))
    if lost := sorted(table.states.keys() - reached):
        raise ValueError(f"states.{lost[0]}: no rule leads there")
    sources: dict[str, set[str]] = {name: set() for name in states}
    for name, state in states.items():
        for _, rule in _rules(state):
            sources[rule.to].add(name)
    ends = {name for name, state in states.items() if state.read in LEFT_BY_TEXT}
    if stuck := sorted(states.keys() - _closure(sources, ends)):
        raise ValueError(f"states.{stuck[0]}: no rule leads from there to content or reasoning")


def _roots(table: Table) -> set[str]:
    return {CONTENT, REASONING, table.start}


def _closure(edges: dict[str, set[str]], names: set[str]) -> set[str]:
    """Returns the names and all that is reached from them."""
    found, waiting = set(names), [*names]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _check_calls(table: Table) -> None:
    """On every way through the states, a call has begun before its parts, and a parameter before its value."""
    states = _states(table)
    seen: set[tuple[str, Open]] = set()
    waiting = [(name, Open.NOTHING) for name in sorted(_roots(table))]
    while waiting:
        name, open_now = waiting.pop()
        if (name, open_now) in seen:
            continue
        seen.add((name, open_now))
        state = states[name]
        needed = NEEDS.get(state.read, open_now)
        if open_now is not needed:
            raise ValueError(f"states.{name}: {state.read.value} is reached with {open_now} open, not {needed}")
        for event, rule in _rules(state):
            for before in _left_open(state.read, open_now, event):
                waiting.append((rule.to, _after(states, state, rule, before, f"states.{name}.on.{event}.do")))


def _left_open(read: Read, before: Open, event: str) -> tuple[Open, ...]:
    """Returns what may be open where a marker, or the text's end, comes in a state that begins calls by itself."""
    if read is Read.JSON_CALL:
        return (Open.CALL,) if event == DONE else (before, Open.CALL)
    if read is Read.PYTHON_CALLS:
        return (Open.NOTHING,) if event == DONE else (before, Open.CALL)
    return (before,)


def _after(states: dict[str, State], state: State, rule: Rule, before: Open, place: str) -> Open:
    """Returns what is open after a rule."""
    now = before
    for action in rule.do:
        needed = {"call": now, "key": Open.CALL, "value": Open.PARAMETER, "end": Open.CALL}[action]
        optional = action == "end" and state.read in (Read.JSON_CALL, Read.PYTHON_CALLS)
        if now is not needed and not optional:
            raise ValueError(f"{place}: {action!r} comes with {now} open, not {needed}")
        if action == "value" and state.read is not Read.VALUE:
            raise ValueError(f"{place}: {state.read.value} is no value")
        now = {"call": Open.CALL, "key": Open.PARAMETER, "value": Open.CALL, "end": Open.NOTHING}[action]
    # Outside of markup, the parser itself leaves a call that is open.
    return Open.NOTHING if states[rule.to].read in LEFT_BY_TEXT - {Read.LAYOUT} else now
