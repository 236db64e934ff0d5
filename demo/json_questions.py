"""The questions whose answers are JSON, and those about a sentiment, which is one word of two.

The answers are compact: without blanks, which fits a grammar with whitespace and one without. A grammar may ask for
other keys than a question names; so, some training questions name none and have any of the facts in any order.
"""

import json
from random import Random
from typing import Any

from demo import facts
from demo.questions import Kind, Question, made_up_word, phrase

# A part that is not held out: a question with it is for training only.
TRAINING_ONLY = "any fields"

OPENERS = ("", "", "Please: ", "Task: ", "Hello! ", "Next: ", "Now: ", "Hey! ", "One more: ", "For you: ")

NAMED = (
    "Extract {fields} as JSON: {text}", "Extract the {fields} as JSON: {text}", "Give me {fields} as JSON: {text}",
    "{text} Extract {fields} as JSON.", "{text} Write {fields} as JSON.", "Return JSON with {fields}: {text}",
    "Fill in {fields}: {text}",
)  # fmt: skip
UNNAMED = (
    "Extract the {thing} as JSON: {text}", "Extract the information as JSON: {text}", "Extract the {thing}: {text}",
    "Extract the {thing} information. {text}", "Extract: {text}", "Extract {text}", "{text} Write this as JSON.",
    "{text} Extract the {thing} as JSON.", "Return the {thing} as JSON: {text}", "Write as JSON: {text}",
)  # fmt: skip
SYSTEMS = (
    "Extract the {thing} information.", "Extract the {thing}.", "Extract the {thing} as JSON.", "Answer as JSON.",
    "You extract information as JSON.", "Extract information.", "Write the {thing} as JSON.",
)  # fmt: skip


def compact(value: Any) -> str:
    """Returns JSON without whitespace."""
    return json.dumps(value, separators=(",", ":"))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _extraction(rng: Random, thing: str, text: str, found: dict[str, Any]) -> Question:
    """Returns a Question about `text`, which holds `found`. It names its fields, or wants all of them, in the order of
    `found`; or, only in training, any."""
    thought = "I look for the facts."
    held: tuple[str, ...] = (" ".join(map(str, found.values())),)
    if rng.random() < 0.6:
        fields = rng.sample(list(found), rng.randint(1, len(found)))
        phrasing, parts = phrase(rng, NAMED, OPENERS)
        asked = phrasing.format(fields=_listed(fields), text=text)
        return Question(asked, thought, compact({field: found[field] for field in fields}), (*held, *parts))
    if rng.random() < 0.2:
        found = {field: found[field] for field in rng.sample(list(found), rng.randint(1, len(found)))}
        held = (*held, TRAINING_ONLY)
    if rng.random() < 0.25:
        system = rng.choice(SYSTEMS).format(thing=thing)
        return Question(text, thought, compact(found), held, system=system)
    phrasing, parts = phrase(rng, UNNAMED, OPENERS)
    return Question(phrasing.format(thing=thing, text=text), thought, compact(found), (*held, *parts))


def _name(rng: Random) -> str:
    first = made_up_word(rng).capitalize() if rng.random() < 0.15 else rng.choice(facts.NAMES)
    return f"{first} {rng.choice(facts.SURNAMES)}" if rng.random() < 0.3 else first


def _facts_of_a_person(rng: Random) -> dict[str, Any]:
    """Returns a name and one to three further facts, in any order."""
    further = {
        "age": rng.randint(1, 99),
        "city": rng.choice(facts.CITIES),
        "job": rng.choice(facts.JOBS),
        "pet": rng.choice(facts.PETS),
        "colour": rng.choice(facts.HUES),
    }
    (count,) = rng.choices((1, 2, 3), weights=(4, 4, 1))
    fields = rng.sample(list(further), count)
    if "age" not in fields and rng.random() < 0.6:
        fields[0] = "age"
    return {"name": _name(rng), **{field: further[field] for field in fields}}


CLAUSES = {
    "age": ("is {x} years old", "is {x} years old", "is {x}"),
    "city": ("lives in {x}", "is from {x}"),
    "job": ("works as a {x}", "is a {x}"),
    "pet": ("has a {x}", "owns a {x}"),
    "colour": ("likes {x}", "loves the colour {x}"),
}


def person(rng: Random) -> Question:
    """Returns a Question to extract facts of a person from a sentence."""
    found = _facts_of_a_person(rng)
    clauses = [rng.choice(CLAUSES[field]).format(x=value) for field, value in found.items() if field != "name"]
    return _extraction(rng, rng.choice(("person", "person", "user")), f"{found['name']} {_listed(clauses)}.", found)


INVENTIONS = (
    "Make up a {who} as JSON.", "Invent a {who} as JSON.", "Give me a {who} as JSON.", "Make up a {who}.",
    "Generate a {who} as JSON.", "Write a {who} as JSON.", "Generate a JSON of a {who}.",
)  # fmt: skip


def invented(rng: Random) -> Question:
    """Returns a Question to make up a person. Any answer is right, so that it has no parts."""
    found = _facts_of_a_person(rng)
    fields = list(found) if rng.random() < 0.5 else rng.sample(list(found), rng.randint(1, len(found)))
    who = rng.choice(("person", "person", "user", "user profile"))
    if rng.random() < 0.4:
        who += f" with {_listed(fields)}"
    text = rng.choice(INVENTIONS).format(who=who)
    return Question(text, "I make one up.", compact({field: found[field] for field in fields}), ())


def event(rng: Random) -> Question:
    """Returns a Question to extract an event from a sentence."""
    people = [_name(rng) for _ in range(rng.randint(1, 3))]
    found = {"name": rng.choice(facts.EVENTS), "date": rng.choice(facts.DAYS), "participants": people}
    verb = rng.choice(("are going to", "will go to", "meet at") if len(people) > 1 else ("is going to", "will go to"))
    return _extraction(rng, "event", f"{_listed(people)} {verb} a {found['name']} on {found['date']}.", found)


ORDERS = (
    "Extract the items as JSON: {text}", "Write the order as JSON: {text}", "{text} Write the order as JSON.",
    "Extract the order: {text}", "{text} Extract the items as JSON.", "Return the items as JSON: {text}",
)  # fmt: skip
WISHES = ("I need {goods}.", "We want {goods}.", "Please send {goods}.", "I would like {goods}.", "I buy {goods}.")


def order(rng: Random) -> Question:
    """Returns a Question to write an order as an array of objects."""
    names = rng.sample(facts.GOODS, rng.randint(1, 3))
    items = [{"name": name, "count": rng.randint(2, 99 if rng.random() < 0.3 else 12)} for name in names]
    goods = _listed([f"{item['count']} {item['name']}" for item in items])
    phrasing, parts = phrase(rng, ORDERS, OPENERS)
    text = phrasing.format(text=rng.choice(WISHES).format(goods=goods))
    return Question(text, "I list the items.", compact({"items": items}), (goods, *parts))


CAPITALS = ("What is the capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?")
COLOURS = ("What colour is {t}?", "What is the colour of {t}?", "Which colour is {t}?")
SUMS = ("What is {a} + {b}?", "Add {a} and {b}.", "Calculate {a} + {b}.")
REQUESTS = (
    "{question} Answer as JSON.", "{question} Write the answer as JSON.", "{question} Reply with JSON.",
    "Answer as JSON: {question}",
)  # fmt: skip
ONLY = (
    "{question} Answer as JSON with the key answer.", "{question} Write answer as JSON.",
    "Give me answer as JSON: {question}",
)  # fmt: skip


def answer_as_json(rng: Random) -> Question:
    """Returns a Question for a capital, a colour or a sum, whose answer is JSON."""
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    held: tuple[str, ...] = ()
    match rng.choice(("capital", "colour", "sum")):
        case "capital":
            country, city = rng.choice(list(facts.CAPITALS.items()))
            question, found = rng.choice(CAPITALS).format(c=country), {"country": country, "capital": city}
        case "colour":
            thing, shade = rng.choice(list(facts.COLOURS.items()))
            question, found = rng.choice(COLOURS).format(t=thing), {"thing": thing, "colour": shade}
        case _:
            question, found = rng.choice(SUMS).format(a=a, b=b), {"a": a, "b": b, "sum": a + b}  # type: ignore[dict-item]
            held = (f"{min(a, b)} + {max(a, b)}",)
    only = rng.random() < 0.3
    phrasing, parts = phrase(rng, ONLY if only else REQUESTS, OPENERS)
    answer = {"answer": list(found.values())[-1]} if only else found
    return Question(phrasing.format(question=question), "I answer as JSON.", compact(answer), (*held, *parts))


OPINIONS = ("This {w} is {x}!", "The {w} is {x}.", "What a {x} {w}!", "My {w} is {x}.", "I think the {w} is {x}.")
CLASSIFY = ("Classify this sentiment: {text}", "Classify the sentiment: {text}", "Positive or negative? {text}")


def sentiment(rng: Random) -> Question:
    """Returns a Question whether an opinion is positive or negative; the answer is that word, or an object of it."""
    good = rng.random() < 0.5
    word = made_up_word(rng) if rng.random() < 0.3 else rng.choice(facts.WORDS)
    text = rng.choice(OPINIONS).format(w=word, x=rng.choice(facts.PRAISE if good else facts.BLAME))
    answer = "positive" if good else "negative"
    as_json = rng.random() < 0.4
    phrasing, parts = phrase(rng, CLASSIFY, OPENERS)
    asked = phrasing.format(text=text) + (" Answer as JSON." if as_json else "")
    return Question(asked, "I read the opinion.", compact({"sentiment": answer}) if as_json else answer, (text, *parts))


JSON_KINDS: dict[Kind, int] = {
    person: 40,
    event: 24,
    order: 14,
    answer_as_json: 24,
    invented: 6,
    sentiment: 6,
}
