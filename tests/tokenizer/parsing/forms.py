"""What the properties need to know of a format: how its checkpoints write an answer. Each format's test file has it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.tokenizer.parsing.drive import grammar_of

THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class RandomCall:
    name: str
    arguments: dict[str, Any]

    def json(self, arguments: str = "arguments") -> str:
        """Returns the call as an object with `name`, and with its arguments under this key."""
        return json.dumps({"name": self.name, arguments: self.arguments}, ensure_ascii=False)


@dataclass(frozen=True)
class RandomAnswer:
    reasoning: str
    before: str
    calls: list[RandomCall]
    after: str


@dataclass(frozen=True)
class Format:
    """A format as its checkpoints write it. `calls`: writes some calls, with the markup in ⟦…⟧; `reasoning`: the text
    around reasoning; `added`: the markers that are added tokens there; `value_end`: what no value can contain."""

    tools: str
    calls: Callable[[list[RandomCall]], str]
    reasoning: str | None = None
    opens: str = ""
    closes: str = ""
    added: tuple[str, ...] = ()
    value_end: str = ""
    before: bool = True  # text may stand before calls
    after: bool = True  # and behind them
    more: bool = True  # calls in one answer
    skips: tuple[str, ...] = ()  # the markers behind which text is layout
    content: tuple[str, str] = ("", "")  # around content
    value_types: bool = False  # values are text, typed by the tool's schema
    names: tuple[str, ...] = ("get_weather", "f", "ns.search-web2", "run_7")  # of functions
    known: bool = False  # only functions that the request offers are called

    @property
    def markers(self) -> list[str]:
        grammar = grammar_of(self.tools, self.reasoning, self.added)
        return sorted({*grammar.text_markers, *grammar.marker_ids.values()})

    def write(self, answer: RandomAnswer) -> str:
        first, last = self.content
        texts = [f"{first}{text}{last}" if text else "" for text in (answer.before, answer.after)]
        reasoning = f"{self.opens}{answer.reasoning}{self.closes}" if self.reasoning else ""
        return reasoning + texts[0] + (self.calls(answer.calls) if answer.calls else "") + texts[1]


def text_of(value: Any) -> str:
    """Returns a parameter's value as formats without JSON write it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
