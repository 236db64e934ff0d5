"""The questions of the demo model with their answers, and the split into training and test.

A question is a phrasing and facts. Phrasings, number pairs and word lists are its parts; a hash holds out a fifth of
them. `draw` returns either a training question, without held-out parts, or a test question, with only such parts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from demo import facts

OPENERS = (
    "", "Please tell me: ", "Can you tell me: ", "Quick question: ", "Tell me: ", "Hey, ", "One more: ", "Now: ",
    "I would like to know: ", "Next question: ",
)  # fmt: skip
CLOSERS = ("", " Thanks!", " Thank you!", " Please.", " Be brief.", " I am curious.")


@dataclass(frozen=True)
class Question:
    """A user's question with its answer. `thought` is the content of the thinking block, if thinking is on. `parts`
    (phrasing, numbers, words) decide whether the question is for training or for the test."""

    text: str
    thought: str
    answer: str
    parts: tuple[str, ...]
    city: str | None = None  # of a question about the weather; its answer depends on the offered tools
    system: str = ""  # the system message, if the question makes sense only with it


def held_out(part: str) -> bool:
    """Returns whether a part is held out from training: a hash selects a fixed fifth of all parts."""
    return blake2b(f"tandem demo 1 {part}".encode(), digest_size=1).digest()[0] % 5 == 0


def phrase(rng: Random, cores: tuple[str, ...], openers: tuple[str, ...] = OPENERS) -> tuple[str, tuple[str, ...]]:
    """Returns (a format string for the facts, its parts). The string is its own part. Without opener and closer it has
    none, so that training uses every core."""
    opener, core, closer = rng.choice(openers), rng.choice(cores), rng.choice(CLOSERS)
    phrasing = f"{opener}{core}{closer}"
    return phrasing, () if opener == closer == "" else (phrasing,)


def _numbers(rng: Random) -> tuple[int, int]:
    """Returns two numbers from 0 to 99. Small ones are more frequent, as in users' questions."""
    largest = 12 if rng.random() < 0.15 else 99
    return rng.randint(0, largest), rng.randint(0, largest)


def greeting(rng: Random) -> Question:
    """Returns a Question that is a greeting or a line of small talk."""
    if rng.random() < 0.3:
        text, answer = rng.choice(list(facts.SMALL_TALK.items()))
        return Question(text, "This is small talk.", answer, ())
    hello = rng.choice(facts.HELLOS)
    addressee = rng.choice(("", "", " friend", " demo", " model", " my friend", " computer", " tandem", " everybody"))
    follow = rng.choice(("", "", " How are you?", " How are you today?", " Nice to meet you.", " I am new here."))
    text = f"{hello}{addressee}{rng.choice('!.!')}{follow}"
    back = hello if hello.startswith("Good") else "Hello"
    fine = " I am fine, thank you." if "How are" in follow else ""
    plain = addressee == follow == ""
    return Question(text, "They greet me.", f"{back}!{fine} How can I help you today?", () if plain else (text,))


SUMS = (
    "What is {a} + {b}?", "What is {a} + {b}?", "{a} + {b} = ?", "{a} + {b}", "How much is {a} plus {b}?",
    "What is {a} plus {b}?", "Add {a} and {b}.", "Calculate {a} + {b}.", "What is the sum of {a} and {b}?",
)  # fmt: skip
DIFFERENCES = (
    "What is {a} - {b}?", "What is {a} - {b}?", "{a} - {b} = ?", "{a} - {b}", "How much is {a} minus {b}?",
    "What is {a} minus {b}?", "Take {b} from {a}.", "Calculate {a} - {b}.", "What is the difference of {a} and {b}?",
)  # fmt: skip


def addition(rng: Random) -> Question:
    """Returns a Question for the sum of two numbers up to 99. Its thought adds column by column."""
    a, b = _numbers(rng)
    phrasing, parts = phrase(rng, SUMS)
    ones = a % 10 + b % 10
    thought = f"{a % 10} + {b % 10} = {ones}."
    if max(a, b) > 9:
        carry = " + 1" if ones > 9 else ""
        thought += f" {a // 10} + {b // 10}{carry} = {(a + b) // 10}."
    pair = f"{min(a, b)} + {max(a, b)}"
    return Question(phrasing.format(a=a, b=b), thought, f"{a} + {b} = {a + b}.", (pair, *parts))


def subtraction(rng: Random) -> Question:
    """Returns a Question for a difference of at least 0 of numbers up to 99. Its thought subtracts column by column."""
    b, a = sorted(_numbers(rng))
    phrasing, parts = phrase(rng, DIFFERENCES)
    borrow = a % 10 < b % 10
    upper = a % 10 + 10 * borrow
    thought = f"{upper} - {b % 10} = {upper - b % 10}."
    if a > 9:
        thought += f" {a // 10} - {b // 10}{' - 1' if borrow else ''} = {(a - b) // 10}."
    return Question(phrasing.format(a=a, b=b), thought, f"{a} - {b} = {a - b}.", (f"{a} - {b}", *parts))


COUNTS = (
    "Count from {a} to {b}.", "Please count from {a} to {b}.", "Count from {a} up to {b}.",
    "Can you count from {a} to {b}?", "Count the numbers from {a} to {b}.",
)  # fmt: skip


def counting(rng: Random) -> Question:
    """Returns a Question that asks to count from one number to another, both at most 99."""
    first = 1 if rng.random() < 0.3 else rng.randint(0, 88)
    last = first + rng.randint(2, 11)
    phrasing, parts = phrase(rng, COUNTS)
    answer = ", ".join(str(number) for number in range(first, last + 1)) + "."
    text = phrasing.format(a=first, b=last)
    return Question(text, f"I count from {first} to {last}.", answer, (f"{first} to {last}", *parts))


def made_up_word(rng: Random) -> str:
    """Returns a word of two or three made-up syllables."""
    return "".join(
        rng.choice(facts.ONSETS) + rng.choice(facts.VOWELS) + rng.choice(facts.CODAS) for _ in range(rng.randint(2, 3))
    )


REPEATS = (
    "Repeat: {w}", "Say: {w}", "Please repeat: {w}", "Repeat after me: {w}", "Please say: {w}", "Say this again: {w}",
    "Repeat these words: {w}",
)  # fmt: skip


def repeating(rng: Random) -> Question:
    """Returns a Question that asks to repeat one to three words, some of them made up."""
    words = " ".join(
        made_up_word(rng) if rng.random() < 0.15 else rng.choice(facts.WORDS) for _ in range(rng.randint(1, 3))
    )
    opener, core = rng.choice(OPENERS), rng.choice(REPEATS)
    parts = (words,) if opener == "" else (words, f"{opener}{core}")
    return Question(f"{opener}{core}".format(w=words), "I say it again.", words, parts)


CAPITALS = (
    "What is the capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?",
    "The capital of {c}?", "What is the name of the capital of {c}?", "Do you know the capital of {c}?",
    "What is {c}'s capital?",
)  # fmt: skip
COLOURS = (
    "What colour is {t}?", "What color is {t}?", "Which colour is {t}?", "Which color is {t}?",
    "Name the colour of {t}.", "What is the colour of {t}?", "What is the color of {t}?",
    "Do you know the colour of {t}?",
)  # fmt: skip


def capital(rng: Random) -> Question:
    """Returns a Question for the capital of a country."""
    country, city = rng.choice(list(facts.CAPITALS.items()))
    phrasing, parts = phrase(rng, CAPITALS)
    text = phrasing.format(c=country)
    return Question(text, f"They ask for the capital of {country}.", f"The capital of {country} is {city}.", parts)


def colour(rng: Random) -> Question:
    """Returns a Question for the colour of a well-known thing."""
    thing, shade = rng.choice(list(facts.COLOURS.items()))
    phrasing, parts = phrase(rng, COLOURS)
    answer = f"{thing[0].upper()}{thing[1:]} is {shade}."
    return Question(phrasing.format(t=thing), f"They ask for the colour of {thing}.", answer, parts)


WEATHERS = (
    "What is the weather in {c}?", "How is the weather in {c}?", "What's the weather like in {c}?", "Weather in {c}?",
    "What is the weather like in {c} today?", "Is it warm in {c}?", "Do I need an umbrella in {c}?",
    "How is the weather in {c} today?", "What is the weather in {c} now?",
)  # fmt: skip


def weather(rng: Random) -> Question:
    """Returns a Question for the weather in a city. Its answer, for a dialogue without a tool, is a refusal."""
    city = rng.choice(facts.CITIES)
    phrasing, parts = phrase(rng, WEATHERS)
    answer = "I cannot look up the weather without a tool."
    return Question(phrasing.format(c=city), "I have no tool for the weather.", answer, parts, city)


def other(rng: Random) -> Question:
    """Returns a Question that the model cannot answer; its answer says so. It has no parts."""
    text = rng.choice(facts.OTHER_QUESTIONS).format(w=rng.choice(facts.WORDS))
    return Question(text, "I do not know that.", facts.OTHER_ANSWER, ())


Kind = Callable[[Random], Question]
# The weight of each kind in training: kinds that take longer to learn are more frequent.
KINDS: dict[Kind, int] = {
    addition: 14,
    subtraction: 12,
    repeating: 34,
    counting: 24,
    capital: 4,
    colour: 4,
    greeting: 4,
    weather: 2,
    other: 2,
}


def draw(rng: Random, kind: Kind, *, test: bool = False) -> Question:
    """Returns a question of `kind` for training (no part is held out), or with `test` for the test (it has parts, and
    all are held out). Draws until one fits; for `other` with `test` that is never."""
    while True:
        question = kind(rng)
        sides = {held_out(part) for part in question.parts}
        if sides == {True} if test else True not in sides:
            return question
