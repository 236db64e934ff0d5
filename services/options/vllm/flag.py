"""One flag of `vllm serve`: the form of its value, and what becomes of it here. Knows no parser and no flag by name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.options.setting import Setting, any_json, boolean, integer, json_object

Kind = Literal["same", "no effect", "other name", "missing"]
MAX_SHOWN = 40  # characters of a value in an error


def at_least(low: float, parse: Callable[[str], Any] = int) -> Setting:
    return Setting("", parse=parse, low=low)


def one_of(*choices: str) -> Setting:
    return Setting("", choices=choices)


def media_limits(text: str) -> int:
    """Returns how many images, audios and videos a value of --limit-mm-per-prompt allows in all."""
    return sum(_count(limit) for limit in json_object(text).values())


def _count(limit: Any) -> int:
    count = limit.get("count") if isinstance(limit, dict) else limit
    if type(count) is not int or count < 0:
        raise ValueError(f"{json.dumps(limit)} is not a number of items")
    return count


SWITCH = Setting("", parse=boolean)
TEXT = Setting("")
TEXTS = Setting("", many=True)
REPEATED = Setting("", repeated=True)
NUMBER = Setting("", parse=float)
WHOLE = Setting("", parse=int)
WHOLES = Setting("", parse=int, many=True)
COUNT = Setting("", parse=integer)
OBJECT = Setting("", parse=json_object)
JSON = Setting("", parse=any_json)
LIMITS = Setting("", parse=media_limits)
OF_OBJECTS = (json_object, any_json, media_limits)  # the parsers of flags that have dotted forms


@dataclass(frozen=True)
class Flag:
    """`name`: without its dashes. `form`: the value's form; of an option of tandem's own, its declaration has it.

    `harmless`: values that ask for nothing that is not so anyway; None: every value. `equal_to`: option whose value is
    harmless, too. `clause`: why another value is refused, or what to use instead; of a flag without effect, the reason.
    `taken_as`: option here that gets the value. `refused`: values of an option of the same name, with their clauses.
    `several`: vLLM takes several words behind it, the option of the same name one.
    """

    name: str
    kind: Kind
    form: Setting = SWITCH
    clause: str = ""
    harmless: tuple[Any, ...] | None = ()
    equal_to: str = ""
    taken_as: str = ""
    refused: Mapping[str, str] | None = None
    short: tuple[str, ...] = ()
    several: bool = False

    @property
    def has_dotted_forms(self) -> bool:
        return self.form.parse in OF_OBJECTS

    def is_harmless(self, value: Any, options: Mapping[str, Any]) -> bool:
        """Returns whether a checked value asks for nothing. `options`: the given options, by name."""
        if self.harmless is None or (self.equal_to and _same_place(value, options.get(self.equal_to))):
            return True
        # 1 == True: a value of another type is another value.
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.harmless)

    def refusal(self, text: str) -> str:
        """Returns why a value is refused. `text`: as it was given; of a switch, empty."""
        shown = f" {text}" if text and self.kind == "missing" and len(text) <= MAX_SHOWN else ""
        return f"--{self.name}{shown}: {self.clause}"


def _same_place(one: str, other: str | None) -> bool:
    return other is not None and one.rstrip("/") == other.rstrip("/")


def same(
    name: str,
    clause: str = "",
    *,
    harmless: tuple[str, ...] = (),
    refused: Mapping[str, str] | None = None,
    short: tuple[str, ...] = (),
    several: bool = False,
) -> Flag:
    """Returns the row of an option that is declared here under the same name. `clause`: what differs."""
    return Flag(name, "same", TEXT, clause, harmless, refused=refused, short=short, several=several)


def unused(name: str, form: Setting = SWITCH, clause: str = "", *, short: tuple[str, ...] = ()) -> Flag:
    """Returns the row of a flag without effect here, whatever its value."""
    return Flag(name, "no effect", form, clause, None, short=short)


def lacks(
    name: str,
    form: Setting,
    clause: str,
    harmless: tuple[Any, ...] = (),
    *,
    equal_to: str = "",
    short: tuple[str, ...] = (),
) -> Flag:
    """Returns the row of a flag that asks for what tandem does not have; for a switch, turning it off is harmless."""
    harmless = (False,) if form is SWITCH and not harmless else harmless
    return Flag(name, "missing", form, clause, harmless, equal_to, short=short)


def other(name: str, form: Setting, clause: str, harmless: tuple[Any, ...] = ()) -> Flag:
    """Returns the row of a flag that is refused with what to use here."""
    harmless = (False,) if form is SWITCH and not harmless else harmless
    return Flag(name, "other name", form, clause, harmless)


def renamed(name: str, form: Setting, option: str) -> Flag:
    """Returns the row of a flag whose value an option of another name gets."""
    return Flag(name, "other name", form, taken_as=option)
