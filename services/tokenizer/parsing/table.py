"""A format of tool calls or reasoning as data: markers, and a state machine that says what the text between them is.

The built-in tables are the TOML files in tables/; `--tool-parser-plugin` takes another one. docs/tools.md is the guide.
read_table.py reads and checks them.
"""

from enum import StrEnum
from typing import Literal

import msgspec

CONTENT = "content"
REASONING = "reasoning"
DONE = "done"  # the event of a text that ends by itself: a JSON value, a Python list of calls


class Read(StrEnum):
    """What the text in a state is."""

    CONTENT = "content"  # text of the answer
    REASONING = "reasoning"  # text of the reasoning
    START = "start"  # the answer's beginning: if a marker of the state is first, it counts, else content follows
    LAYOUT = "layout"  # whitespace between markers; other text is content
    HEADER = "header"  # as NAME, but between messages: what no marker ends is ignored
    NAME = "name"  # the name of a function or parameter, up to a marker
    SKIP = "skip"  # text that is ignored, up to a marker
    VALUE = "value"  # a parameter's value, up to a marker; its type is that of the tool's schema
    JSON = "json"  # a call's arguments: one JSON object
    JSON_CALL = "json_call"  # one JSON object with `name`, and `arguments` or `parameters`
    PYTHON_CALLS = "python_calls"  # a Python list of calls with keyword arguments


ENDS_BY_ITSELF = frozenset({Read.JSON, Read.JSON_CALL, Read.PYTHON_CALLS})
Action = Literal["call", "key", "value", "end"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a marker does in a state. `to`: the next state. `do`: "call" begins a call by the name read, "key" begins a
    parameter by the name read, "value" ends a parameter, "end" ends the call. `when`: a regular expression that the
    name read must contain; its group `name`, if it has one, becomes the name. `keep`: the marker's text is the
    beginning of the next state's text. `name`: the call's name, where no text says it."""

    to: str
    do: tuple[Action, ...] = ()
    when: str = ""
    keep: bool = False
    name: str = ""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`on`: the marker's name, or "done", to its rules, of which the first that matches counts; a plain name of a state
    is a rule that only goes there. `known`: only functions that the request offers are called, other text is content.
    `trim`: of a value, a line break at its very beginning and end is layout.
    """

    read: Read
    on: dict[str, str | Rule | tuple[Rule, ...]] = {}
    known: bool = False
    trim: bool = False

    def rules(self, event: str) -> tuple[Rule, ...]:
        found = self.on[event]
        if isinstance(found, str):
            return (Rule(found),)
        return (found,) if isinstance(found, Rule) else found


class Detect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what a model's format is recognised: texts that its chat template has, all of them; texts that it lacks; its
    model_type, one of these. All conditions that are given must hold."""

    template: tuple[str, ...] = ()
    template_without: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The texts that begin and end reasoning, which thinking_token_budget counts and forces."""

    end: str
    start: str = ""


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the format's checkpoints write calls, for grammars. `call`: one call, with `$name`, and with `$arguments` or
    `$parameters` in it; `parameter`: one of these, with `$key` and `$value`. A line break is optional everywhere.
    `first`, `between`, `last`: the text around all calls, and between two. `several`: whether an answer has more than
    one call. `arguments`: their notation. `content`: what stands before content, `again`: before all that follows
    reasoning. `needs`: the added tokens without which the model has another way to write calls, the next one."""

    call: str
    parameter: str = ""
    first: str = ""
    between: str = ""
    last: str = ""
    several: bool = True
    arguments: Literal["json", "python"] = "json"
    content: str = ""
    again: str = ""
    needs: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One format. `tools` and `reasoning`: the names by which `--tool-call-parser` and `--reasoning-parser` select it,
    those of vLLM. `detect`: one or several ways to recognise the format. `start`: the state at the first token of an
    answer, unless the prompt ends in another one. `turn`: the markers that begin a message, if the format has such;
    else every special token that is no marker may do so. `write`: one or several ways to write calls; without any,
    required calls have a form of tandem's own."""

    markers: dict[str, str]
    states: dict[str, State]
    tools: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    source: str = ""
    start: str = CONTENT
    turn: tuple[str, ...] = ()
    call_ids: Literal["openai", "mistral"] = "openai"
    thinking: Thinking | None = None
    detect: Detect | tuple[Detect, ...] = ()
    write: Write | tuple[Write, ...] = ()

    @property
    def name(self) -> str:
        return (*self.tools, *self.reasoning)[0]

    @property
    def is_whole(self) -> bool:
        """Whether it describes whole answers, with their calls and their reasoning; no other table goes with it."""
        return bool(self.tools and self.reasoning)

    @property
    def detections(self) -> tuple[Detect, ...]:
        return (self.detect,) if isinstance(self.detect, Detect) else self.detect

    @property
    def ways_to_write(self) -> tuple[Write, ...]:
        return (self.write,) if isinstance(self.write, Write) else self.write
