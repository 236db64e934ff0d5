"""Two hundred requests from a seed, of every kind that the server answers, and which of them their clients give up.

Every request has a seed of its own or is greedy, so its answer is one certain answer. Lengths differ, so that at any
moment requests are in every phase.
"""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NUM_CASES = 200
STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}
THINK: Json = {"chat_template_kwargs": {"enable_thinking": True}}
QUESTIONS = ("Which way to Köln?", "Tell me a story", "What is 17 + 25?", "Count from 3 to 30", "What is a cat?")
DAYS = ("first", "second", "third")
PREFIXES = tuple(f"Minutes of the {day} market at the old town hall of Köln. " * 14 for day in DAYS)
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Json = {"tools": [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]}
# The demo model's tokens of its calls and thoughts: hardly anything but markers, JSON and parts of them.
CALL_IDS = [3, 4, 5, 6, 56, 71, 207, 266, 267, 286, 287, 346, 354, 356, 362, 366, 372, 438, 724]
# Forms that are hardly complete before max_tokens.
NUMBERS: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 300}
FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS, "strict": True}}
COUNTED: Json = {"type": "object", "properties": {"to": NUMBERS}, "required": ["to"], "additionalProperties": False}
COUNT: Json = {"type": "function", "function": {"name": "count", "strict": True, "parameters": COUNTED}}
REQUIRED: Json = {"tools": [COUNT], "tool_choice": "required"}
PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip
PERSON_FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@dataclass
class Case:
    """One request. `stops`: its stop strings are chosen from its own answer. `hang_up_tokens`: the client closes the
    connection when it has so many tokens; `hang_up_seconds`: after so long."""

    name: str
    path: str
    body: Json
    stops: bool = False
    fresh_salt: bool = True
    hang_up_tokens: int | None = None
    hang_up_seconds: float | None = None

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def hangs_up(self) -> bool:
        return self.hang_up_tokens is not None or self.hang_up_seconds is not None


@dataclass
class _Maker:
    """Makes the requests of each kind from one random source."""

    rng: random.Random
    cases: list[Case] = field(default_factory=list)

    def chat(self, **more: Any) -> tuple[str, Json]:
        question = more.pop("question", None) or f"{self.rng.choice(QUESTIONS)} {self._word()}"
        return CHAT, {"messages": [{"role": "user", "content": question}], **self._common(), **more}

    def text(self, **more: Any) -> tuple[str, Json]:
        return TEXT, {"prompt": f"{self._word()} {self._word()} {self._word()}", **self._common(), **more}

    def _common(self) -> Json:
        return {
            "max_tokens": self.rng.randint(60, 300),
            "temperature": 1,
            "seed": self.rng.randrange(2**31),
            "ignore_eos": True,
            "return_token_ids": True,
            # Few go before the others: what comes after all of them would wait for ever, because they never cease.
            "priority": self.rng.choice((-5, -1, *[0] * 8)),
        }

    def _word(self) -> str:
        return "".join(self.rng.choices(string.ascii_lowercase, k=self.rng.randint(2, 9)))

    def ids(self, low: int, high: int) -> list[int]:
        return [self.rng.randrange(30, 1000) for _ in range(self.rng.randint(low, high))]

    def prefixed(self) -> str:
        return self.rng.choice(PREFIXES) + self._word()


KINDS: dict[str, Callable[[_Maker], tuple[str, Json]]] = {
    "chat": lambda make: make.chat(),
    "greedy": lambda make: make.chat(temperature=0),
    "own end": lambda make: make.chat(temperature=0.7, ignore_eos=False),
    "text": lambda make: make.text(),
    "two choices": lambda make: make.chat(n=2),
    "text two choices": lambda make: make.text(n=2, logprobs=1),
    "two prompts": lambda make: make.text(prompt=["left", make.prefixed()], min_tokens=20),
    "logprobs": lambda make: make.chat(logprobs=True, top_logprobs=3),
    "text logprobs": lambda make: make.text(logprobs=2),
    "penalties": lambda make: make.text(frequency_penalty=0.5, presence_penalty=0.5),
    "repetition": lambda make: make.chat(repetition_penalty=1.1, min_p=0.01, top_k=300),
    "special": lambda make: make.text(prompt=make.ids(4, 40), skip_special_tokens=False, top_p=0.95),
    "bias": lambda make: make.text(logit_bias={"40": 3, "300": -100}, frequency_penalty=0.5),
    "bad words": lambda make: make.chat(bad_words=["the", "e", " a", "in the"]),
    "min tokens": lambda make: make.text(ignore_eos=False, logit_bias={"2": 9}, min_tokens=50),
    "stop": lambda make: make.text(),
    "stop chat": lambda make: make.chat(include_stop_str_in_output=True),
    "calls": lambda make: make.chat(question="What is the weather in Paris?", n=2, **WEATHER, **THINK),
    "call markers": lambda make: make.chat(**WEATHER, allowed_token_ids=CALL_IDS, stop=["}}}"]),
    "required call": lambda make: make.chat(question="Count!", **REQUIRED),
    "thought": lambda make: make.chat(question="What is 12 + 30?", ignore_eos=False, **THINK),
    "thought json": lambda make: make.chat(question="Count!", response_format=FORMAT, **THINK),
    "json": lambda make: make.text(guided_json=NUMBERS),
    "person": lambda make: make.chat(
        question="Extract name and age as JSON: Anna is 14 years old.", ignore_eos=False, response_format=PERSON_FORMAT
    ),
    "regex": lambda make: make.text(guided_regex="([a-z]{3,9}[.,!] ?){400}", logprobs=1),
    "prefix": lambda make: make.chat(question=make.prefixed(), cache_salt="shared"),
    "long prompt": lambda make: make.text(prompt=make.ids(900, 1500), max_tokens=make.rng.randint(20, 80)),
}  # fmt: skip
WHOLE_KINDS: dict[str, Callable[[_Maker], tuple[str, Json]]] = {
    "prompt logprobs": lambda make: make.text(prompt=make.ids(50, 400), prompt_logprobs=2),
    "chat prompt logprobs": lambda make: make.chat(question=make.prefixed()[-300:], prompt_logprobs=0, logprobs=True),
    "echo": lambda make: make.text(echo=True, logprobs=1),
}
STOPS = ("stop", "stop chat")
MIXED = ("chat", "text", "calls", "prefix", "json", "long prompt", "two choices")  # kinds of requests that are given up


def make_cases(seed: int, count: int = NUM_CASES) -> list[Case]:
    """Returns `count` requests with names of their own. Equal seeds make equal requests."""
    make = _Maker(random.Random(f"cases {seed}"))
    forms = [(name, kind, stream) for name, kind in KINDS.items() for stream in (True, False)]
    forms += [(name, kind, True) for name, kind in KINDS.items()]  # two of three stream
    forms += [(name, kind, False) for name, kind in WHOLE_KINDS.items()]
    forms += [(f"given up: {name}", KINDS[name], stream) for name in MIXED for stream in (True, True, False)]
    order = [form for _ in range(count // len(forms) + 1) for form in make.rng.sample(forms, len(forms))]
    return [_case(make, number, *form) for number, form in enumerate(order[:count])]


def _case(make: _Maker, number: int, name: str, kind: Callable[[_Maker], tuple[str, Json]], streams: bool) -> Case:
    path, body = kind(make)
    body |= STREAM if streams else {}
    case = Case(f"{number} {name}{' stream' if streams else ''}", path, body, stops=name in STOPS)
    case.fresh_salt = "cache_salt" not in body and make.rng.random() < 0.7
    if name.startswith("given up"):
        if streams:
            case.hang_up_tokens = make.rng.randint(0, body["max_tokens"] * 2 // 3)
        else:
            case.hang_up_seconds = make.rng.uniform(0.0, 3.0)
    return case
