"""Training dialogues: questions with turns, system messages, tools and thinking. Pure Python; the same seed always
gives the same dialogues, so that a training run can be repeated."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from demo import facts
from demo.json_questions import JSON_KINDS
from demo.questions import KINDS, Kind, Question, addition, counting, draw, made_up_word, subtraction, weather

Message = dict[str, Any]
Tool = dict[str, Any]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a small demo model. Answer briefly.",
    "You are a friendly assistant. Be short and kind.",
    "Answer every question in one sentence.",
)


@dataclass(frozen=True)
class Dialogue:
    """One training example: `messages`, of which the last is a user's or a tool's; the complete `answer` that the model
    must generate, with its thinking block if `thinking`; and the offered `tools`."""

    messages: list[Message]
    answer: str
    tools: list[Tool] = field(default_factory=list)
    thinking: bool = False


def _function(name: str, description: str, parameter: str, rng: Random) -> Tool:
    """Returns a tool's definition, with one string parameter, in OpenAI's format. Optional fields are random."""
    schema: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.3:
        schema["description"] = f"The {parameter}."
    parameters: dict[str, Any] = {"type": "object", "properties": {parameter: schema}}
    if rng.random() < 0.6:
        parameters["required"] = [parameter]
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.7:
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": parameters}}


def weather_tool(rng: Random) -> tuple[Tool, str]:
    """Returns (a definition of get_weather, the name of its parameter). The name is city or location."""
    parameter = rng.choice(("city", "city", "location"))
    description = rng.choice(
        ("Get the weather in a city.", "Get the current weather for a city.", "Get the weather of a place.")
    )
    return _function("get_weather", description, parameter, rng), parameter


def tool_call(city: str, parameter: str) -> str:
    """Returns the text of a get_weather call in Hermes format, which Qwen3 uses too: JSON in a <tool_call> tag."""
    call = json.dumps({"name": "get_weather", "arguments": {parameter: city}})
    return f"<tool_call>\n{call}\n</tool_call>"


def _with_thought(thought: str, answer: str, thinking: bool) -> str:
    return f"<think>\n{thought}\n</think>\n\n{answer}" if thinking else answer


def with_tool(question: Question, rng: Random, *, thinking: bool = False) -> Dialogue:
    """Returns a dialogue that offers get_weather and maybe another tool. The answer to a question about the weather is
    a call; the answer to any other question is text."""
    tool, parameter = weather_tool(rng)
    others = [_function(*other, rng) for other in rng.sample(facts.OTHER_TOOLS, rng.choice((0, 0, 0, 1)))]
    tools = [tool, *others]
    rng.shuffle(tools)
    messages = [{"role": "user", "content": question.text}]
    if question.city is None:
        return Dialogue(messages, _with_thought(question.thought, question.answer, thinking), tools, thinking)
    call = tool_call(question.city, parameter)
    return Dialogue(messages, _with_thought(f"I look up {question.city}.", call, thinking), tools, thinking)


def after_the_call(question: Question, rng: Random, *, thinking: bool = False) -> Dialogue:
    """Returns a dialogue on a question about the weather: `messages` end with a get_weather call and its result, which
    `answer` states."""
    assert question.city is not None
    tool, parameter = weather_tool(rng)
    degrees, sky = rng.randint(0, 35), rng.choice(facts.SKIES)
    result = rng.choice(
        (json.dumps({"temperature": degrees, "condition": sky}), f"{degrees} degrees, {sky}", f"{sky}, {degrees} C")
    )
    function = {"name": "get_weather", "arguments": {parameter: question.city}}
    messages: list[Message] = [
        {"role": "user", "content": question.text},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": result},
    ]
    answer = f"It is {sky} in {question.city}, with {degrees} degrees."
    return Dialogue(messages, _with_thought("The tool has answered.", answer, thinking), [tool], thinking)


def plain(questions: list[Question], rng: Random, *, thinking: bool = False) -> Dialogue:
    """Returns a dialogue of all questions without tools. The last question's answer is `answer`, the others' are in
    `messages`. Some dialogues have a system message."""
    messages: list[Message] = []
    *earlier, last = questions
    if last.system:
        messages.append({"role": "system", "content": last.system})
    elif rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for question in earlier:
        messages += [{"role": "user", "content": question.text}, {"role": "assistant", "content": question.answer}]
    messages.append({"role": "user", "content": last.text})
    return Dialogue(messages, _with_thought(last.thought, last.answer, thinking), thinking=thinking)


# The requests for lists of examples. The answer is a list without questions.
LISTS: dict[Kind, str] = {
    addition: "Show me some sums.",
    subtraction: "Show me some differences.",
    counting: "Show me how to count.",
}


def examples(rng: Random) -> Dialogue:
    """Returns a dialogue with one long answer: several sums, differences or counts, or many words to repeat. That is
    much training for few tokens."""
    kind = rng.choice((*LISTS, None, None))
    if kind is None:
        pool = (*facts.WORDS, *facts.CITIES)
        words = " ".join(
            made_up_word(rng) if rng.random() < 0.4 else rng.choice(pool) for _ in range(rng.randint(4, 12))
        )
        return Dialogue([{"role": "user", "content": f"Say all of this again: {words}"}], words)
    drawn = [draw(rng, kind) for _ in range(rng.randint(2, 5) if kind is counting else rng.randint(4, 10))]
    shown = " ".join(f"{one.thought} {one.answer}" if kind is counting else one.answer for one in drawn)
    return Dialogue([{"role": "user", "content": LISTS[kind]}], shown)


@dataclass(frozen=True)
class Mix:
    """Shares of the drawn dialogues, from 0 to 1: `json`, dialogues that end with JSON, of all; `examples` of the
    others; `tools`, dialogues with tools, of what is left."""

    examples: float
    tools: float
    json: float = 0.0


# The curriculum: first mostly lists, which teach arithmetic and copying for few tokens, then mostly dialogues.
EARLY = Mix(examples=0.7, tools=0.0)
LATE = Mix(examples=0.2, tools=0.24)
# The second training: JSON, beside enough of the rest that nothing is forgotten.
WITH_JSON = Mix(examples=0.15, tools=0.24, json=0.5)


def _question(rng: Random, kinds: dict[Kind, int]) -> Question:
    (kind,) = rng.choices(list(kinds), weights=list(kinds.values()))
    return draw(rng, kind)


def ending_with_json(rng: Random) -> Dialogue:
    """Returns a dialogue whose last question asks for JSON: sometimes after other questions, with thinking or beside
    tools that it does not need."""
    last = _question(rng, JSON_KINDS)
    thinking = rng.random() < 0.2
    if not last.system and rng.random() < 0.08:
        return with_tool(last, rng, thinking=thinking)
    earlier = (
        [] if thinking else [_question(rng, rng.choice((KINDS, JSON_KINDS))) for _ in range(rng.choice((0, 0, 1)))]
    )
    return plain([*(one for one in earlier if not one.system), last], rng, thinking=thinking)


def _dialogue(rng: Random, mix: Mix) -> Dialogue:
    def question() -> Question:
        return _question(rng, KINDS)

    if mix.json and rng.random() < mix.json:
        return ending_with_json(rng)
    if rng.random() < mix.examples:
        return examples(rng)
    if rng.random() < mix.tools:
        thinking = rng.random() < 0.5
        match rng.choices(("call", "other", "answer"), weights=(80, 10, 10)):
            case ["call"]:
                return with_tool(draw(rng, weather), rng, thinking=thinking)
            case ["other"]:
                return with_tool(question(), rng, thinking=thinking)
            case _:
                return after_the_call(draw(rng, weather), rng, thinking=thinking)
    thinking = rng.random() < 0.25
    turns = 1 if thinking else rng.choice((1, 1, 2, 3, 4))
    return plain([question() for _ in range(turns)], rng, thinking=thinking)


def dialogues(seed: int, mix: Mix) -> Iterator[Dialogue]:
    """Yields training dialogues without end, drawn with the shares of `mix`. The same seed gives the same dialogues."""
    rng = Random(seed)
    while True:
        yield _dialogue(rng, mix)
