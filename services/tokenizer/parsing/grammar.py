"""The state machine of one model's answers: the tables of its reasoning and its tool calls in one, bound to its tokens.

A marker that is one added token of the tokenizer counts by its id alone; one that is ordinary text counts by its text.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.rpc import pieces
from services.tokenizer.parsing.table import CONTENT, DONE, REASONING, Action, Read, Rule, State, Table

OUTSIDE = frozenset({Read.CONTENT, Read.REASONING, Read.START})  # of calls and markup


@dataclass(eq=False, slots=True)
class Transition:
    to: "Node"
    do: tuple[Action, ...]
    when: re.Pattern[str] | None
    keep: bool
    name: str


@dataclass(eq=False, slots=True)
class Node:
    """A state. `pattern` finds the markers that count by their text, or what may be the beginning of one at the text's
    end (group `part`). `otherwise`: where a START state goes if no marker is first. `holds_space`: whitespace waits for
    the text behind it, because it is layout before a marker."""

    read: Read
    known: bool = False
    trim: bool = False
    transitions: dict[str, tuple[Transition, ...]] = field(default_factory=dict)  # by the marker's text, or DONE
    pattern: re.Pattern[str] | None = None
    otherwise: "Node | None" = None
    holds_space: bool = False

    @property
    def is_outside(self) -> bool:
        return self.read in OUTSIDE

    @property
    def kind(self) -> int:
        """The PieceKind of the text that stands here, outside of calls."""
        return pieces.REASONING if self.read is Read.REASONING else pieces.CONTENT

    @property
    def is_structure(self) -> bool:
        """Whether what stands here can be no part of a call that is only possible."""
        return self.read in OUTSIDE or self.read is Read.HEADER


@dataclass(frozen=True)
class Start:
    """Where an answer begins: the state, the name read so far in it, and whether leading whitespace is layout."""

    node: Node
    name: str = ""
    fresh: bool = False


@dataclass(frozen=True)
class Grammar:
    """`marker_ids`: the markers that are added tokens, by id. `turn_ids`: the tokens that begin a message in the
    prompt; of them, those in `marker_ids` belong to it."""

    start: Node
    content: Node
    marker_ids: Mapping[int, str]
    text_markers: tuple[str, ...]
    turn_ids: frozenset[int]


def build_grammar(
    tools: Table | None, reasoning: Table | None, added: Mapping[str, int], special: Iterable[int]
) -> Grammar:
    """Returns the state machine that both tables describe; None: without calls, or without reasoning.

    Where both are the same table, it describes whole answers: without `tools` its calls are content, without
    `reasoning` its reasoning is. `added`: ids of the tokenizer's added tokens by their text; `special`: the ids that
    are special.
    """
    return _Builder(tools, reasoning, added).grammar(frozenset(special))


class _Builder:
    def __init__(self, tools: Table | None, reasoning: Table | None, added: Mapping[str, int]) -> None:
        self._calls = tools is not None
        self._separate = reasoning is not None
        whole = next(
            (table for table in (tools, reasoning) if table is not None and table.tools and table.reasoning), None
        )
        self._tools = whole or tools
        self._reasoning = None if whole else reasoning
        self._added = added
        self._nodes: dict[tuple[int, str], Node] = {}  # by the table and the state's name; shared ones without a table

    def grammar(self, special: frozenset[int]) -> Grammar:
        content = self._node(None, CONTENT, State(Read.CONTENT))
        thinking = self._node(None, REASONING, State(Read.REASONING if self._separate else Read.CONTENT))
        tables = [table for table in (self._tools, self._reasoning) if table is not None]
        for table in tables:
            for name, state in table.states.items():
                self._connect(table, name, state)
        if self._tools is not None and self._reasoning is not None:
            self._join(self._tools, self._reasoning, content, thinking)
        texts = {text for table in tables for text in table.markers.values()}
        ids = {self._added[text]: text for text in texts if text in self._added}
        for node in self._nodes.values():
            node.pattern = _pattern([text for text in node.transitions if text != DONE and text not in self._added])
            if node.read in (Read.CONTENT, Read.REASONING, Read.LAYOUT):
                node.holds_space = bool(node.transitions)
        turns = {self._added.get(table.markers[name], -1) for table in tables for name in table.turn}
        return Grammar(
            start=self._target(tables[-1], tables[-1].start),
            content=content,
            marker_ids=ids,
            text_markers=tuple(sorted(texts - self._added.keys())),
            turn_ids=frozenset(turns) - {-1} or special - ids.keys(),
        )

    def _connect(self, table: Table, name: str, state: State) -> None:
        node = self._node(table, name, state)
        if state.read is Read.START:
            node.otherwise = self._target(table, CONTENT)
        for event in state.on:
            key = event if event == DONE else table.markers[event]
            rules = [rule for rule in state.rules(event) if self._calls or "call" not in rule.do]
            node.transitions[key] = tuple(self._transition(table, rule) for rule in rules)

    def _transition(self, table: Table, rule: Rule) -> Transition:
        when = re.compile(rule.when) if rule.when else None
        return Transition(self._target(table, rule.to), rule.do, when, rule.keep, rule.name)

    def _target(self, table: Table, name: str) -> Node:
        """Returns the node of a state. Content behind reasoning is where the table of the calls starts."""
        if name == CONTENT and table is self._reasoning and self._tools is not None:
            return self._target(self._tools, self._tools.start)
        return self._node(table, name, table.states.get(name, State(Read.CONTENT)))

    def _node(self, table: Table | None, name: str, state: State) -> Node:
        key = (0, name) if name in (CONTENT, REASONING) else (id(table), name)
        if key not in self._nodes:
            self._nodes[key] = Node(state.read, state.known, state.trim)
        return self._nodes[key]

    def _join(self, tools: Table, reasoning: Table, content: Node, thinking: Node) -> None:
        """Reasoning may begin wherever content may, and a call that begins within reasoning ends it."""
        opens = content.transitions.items()
        calls = {key: rules for key, rules in opens if any(rule.to is not thinking for rule in rules)}
        start = self._target(tools, tools.start)
        for key, rules in content.transitions.items():
            start.transitions.setdefault(key, rules)
        for key, rules in calls.items():
            thinking.transitions.setdefault(key, rules)


def _pattern(markers: list[str]) -> re.Pattern[str] | None:
    """Returns a pattern that finds one of the texts, or, as the group `part`, the beginning of one at the end.

    A text that is the beginning of another one, as "[" of "[ARGS]", is a part there.
    """
    if not markers:
        return None
    whole = "|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True))
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    if not beginnings:
        return re.compile(whole)
    part = "|".join(re.escape(one) for one in sorted(beginnings, key=len, reverse=True))
    return re.compile(f"(?P<part>(?:{part})\\Z)|(?:{whole})")
