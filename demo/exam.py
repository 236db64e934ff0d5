"""The exam of the demo model: questions of every kind but `other`, all from the held-out part: none is in training."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo import json_questions, questions
from demo.dialogues import Dialogue, plain, with_tool
from demo.questions import Kind, Question, draw


@dataclass(frozen=True)
class Task:
    """A held-out question. `dialogue.messages` end with it, `dialogue.answer` is the expected answer."""

    question: Question
    dialogue: Dialogue


def _task(kind: Kind, *, thinking: bool = False) -> Callable[[Random], Task]:
    def make(rng: Random) -> Task:
        question = draw(rng, kind, test=True)
        return Task(question, plain([question], rng, thinking=thinking))

    return make


def _task_with_tool(*, thinking: bool) -> Callable[[Random], Task]:
    def make(rng: Random) -> Task:
        question = draw(rng, questions.weather, test=True)
        return Task(question, with_tool(question, rng, thinking=thinking))

    return make


EXAM: dict[str, Callable[[Random], Task]] = {
    "greeting": _task(questions.greeting),
    "sum": _task(questions.addition),
    "difference": _task(questions.subtraction),
    "counting": _task(questions.counting),
    "repeating": _task(questions.repeating),
    "capital": _task(questions.capital),
    "colour": _task(questions.colour),
    "tool call": _task_with_tool(thinking=False),
    "thinking": _task(questions.addition, thinking=True),
    "thinking, tool call": _task_with_tool(thinking=True),
    "person as JSON": _task(json_questions.person),
    "event as JSON": _task(json_questions.event),
    "order as JSON": _task(json_questions.order),
    "answer as JSON": _task(json_questions.answer_as_json),
    "sentiment": _task(json_questions.sentiment),
    "thinking, person as JSON": _task(json_questions.person, thinking=True),
}
