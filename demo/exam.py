"""What the demo model is examined in: held-out questions of every kind, none of them trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo import questions
from demo.dialogues import Dialogue, plain, with_tool
from demo.questions import Kind, Question, draw


@dataclass(frozen=True)
class Task:
    """A dialogue that ends with an open question, and that question."""

    question: Question
    dialogue: Dialogue


def _asked(kind: Kind, *, thinking: bool = False) -> Callable[[Random], Task]:
    def ask(rng: Random) -> Task:
        question = draw(rng, kind, test=True)
        return Task(question, plain([question], rng, thinking=thinking))

    return ask


def _asked_with_tool(*, thinking: bool) -> Callable[[Random], Task]:
    def ask(rng: Random) -> Task:
        question = draw(rng, questions.weather, test=True)
        return Task(question, with_tool(question, rng, thinking=thinking))

    return ask


EXAM: dict[str, Callable[[Random], Task]] = {
    "greeting": _asked(questions.greeting),
    "sum": _asked(questions.addition),
    "difference": _asked(questions.subtraction),
    "counting": _asked(questions.counting),
    "repeating": _asked(questions.repeating),
    "capital": _asked(questions.capital),
    "colour": _asked(questions.colour),
    "tool call": _asked_with_tool(thinking=False),
    "thinking": _asked(questions.addition, thinking=True),
    "thinking, tool call": _asked_with_tool(thinking=True),
}
