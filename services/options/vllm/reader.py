"""Reads vLLM's flags on the command line of `tandem serve`, and in its configuration file, by the table.

It knows argparse and the options that were given, and no flag by name. services/options/command_line.py calls it, in
this order: `spelled`, `add_flags`, `file_values`, `renamed`, `settled`.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.options.setting import Setting, UsageError, boolean
from services.options.vllm.flag import Flag
from services.options.vllm.table import FLAGS, SEVERAL, SHORT

_SHORT = re.compile(r"(-[a-zA-Z]+)([.=].*)?", re.DOTALL)
_LEVEL = re.compile(r"-O=?([0-9])")  # -O3, as for compilers
_LONG = re.compile(r"--[^.=]*")
Convert = Callable[[Setting, str, Any], Any]


@dataclass(frozen=True)
class Settled:
    """`values`: the given options of tandem's own. `without_effect`: vLLM's flags among
    them, which change nothing."""

    values: dict[str, Any]
    without_effect: tuple[str, ...]


def spelled(argv: Iterable[str]) -> list[str]:
    """Returns the command line with vLLM's spellings, --max_model_len, -tp 2, -O3, -cc.mode=3, as long flags, and
    --api-key a b as --api-key a --api-key b.

    The latter only if the first word is the model's name: else a further word may be it. Words after `--` stay.
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    spelt = list(map(_spelled, words[:end]))
    if spelt and not spelt[0].startswith("-"):
        spelt = list(_one_by_one(spelt))
    return [*spelt, *words[end:]]


def _one_by_one(words: Iterable[str]) -> Iterator[str]:
    """Repeats a flag of SEVERAL before each further word behind it."""
    flag, has_value = "", False
    for word in words:
        if word.startswith("-"):
            flag, has_value = word if word in SEVERAL else "", False
        elif flag and has_value:
            yield flag
        else:
            has_value = True
        yield word


def _spelled(word: str) -> str:
    if word.startswith("--"):
        return _LONG.sub(lambda found: found[0].replace("_", "-"), word, count=1)
    if found := _LEVEL.fullmatch(word):
        return f"--optimization-level={found[1]}"
    if (found := _SHORT.fullmatch(word)) and found[1] in SHORT:
        # `-O.mode=3` is an older spelling of `-cc.mode=3`.
        name = "-cc" if found[1] == "-O" and (found[2] or "").startswith(".") else found[1]
        return SHORT[name] + (found[2] or "")
    return word


def flags_beside() -> dict[str, Flag]:
    """Returns {destination: flag} of vLLM's flags that are no options of the same name here. A destination is the long
    flag, so it is the name of no option."""
    return {f"--{name}": flag for name, flag in FLAGS.items() if flag.kind != "same"}


def add_flags(parser: argparse.ArgumentParser, words: Iterable[str]) -> None:
    """Makes the parser take those of vLLM's flags that are in the command line, without a line in its help."""
    given = {word.partition("=")[0] for word in words}
    for title, flag in flags_beside().items():
        if not given & {title, f"--no-{flag.name}"}:
            continue
        if flag.form.parse is boolean:
            parser.add_argument(title, dest=title, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
        elif flag.form.many:
            parser.add_argument(title, dest=title, action="extend", nargs="+", help=argparse.SUPPRESS)
        elif flag.form.repeated:
            parser.add_argument(title, dest=title, action="append", help=argparse.SUPPRESS)
        else:
            parser.add_argument(title, dest=title, help=argparse.SUPPRESS)


def file_values(
    values: Mapping[str, Any], settings: Mapping[str, Setting], beside: Mapping[str, Flag]
) -> dict[str, Any]:
    """Returns the values of a configuration file by destination. `values`: by name, with `_`. `beside`: as
    flags_beside, or empty.

    As in vLLM, `no-enable-prefix-caching: true` turns a switch off.
    """
    forms = {**settings, **{_name(title): flag.form for title, flag in beside.items()}}
    switches = {f"no_{name}": name for name, form in forms.items() if form.parse is boolean}
    found = {}
    for name, value in values.items():
        if name not in forms and name in switches and isinstance(value, bool):
            name, value = switches[name], not value
        title = "--" + name.replace("_", "-")
        found[title if title in beside and name not in settings else name] = value
    return found


def _name(title: str) -> str:
    return title.removeprefix("--").replace("-", "_")


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the raw values of one source, those of flags that have another name here under that name.

    Raises UsageError if both are given.
    """
    values = dict(given)
    for title, flag in flags_beside().items():
        if flag.taken_as and title in values:
            if flag.taken_as in values:
                other = flag.taken_as.replace("_", "-")
                raise UsageError(f"{title} sets the option {other}, which is given as well: give only one of them")
            values[flag.taken_as] = values.pop(title)
    return values


def settled(given: Mapping[str, Any], convert: Convert) -> Settled:
    """Returns the given options without vLLM's flags, each of which has no effect.

    `given`: raw values by destination. `convert`: checks a value of a form. Raises UsageError for a value that is not
    of the flag's form, and, in one line for all of them, for flags that ask for what tandem does not have.
    """
    values = {name: value for name, value in given.items() if not name.startswith("--")}
    without_effect: list[str] = []
    refusals: list[str] = []
    for title, flag in flags_beside().items():
        if given.get(title) is None:
            continue
        if flag.is_harmless(convert(flag.form, title, given[title]), given):
            without_effect.append(title if given[title] is not False else f"--no-{flag.name}")
        else:
            refusals.append(flag.refusal(_shown(given[title])))
    refusals += _refused_values(values)
    if refusals:
        raise UsageError("; ".join(refusals))
    return Settled(values, tuple(without_effect))


def _refused_values(values: dict[str, Any]) -> list[str]:
    """Returns the refusals of values that options of the same name do not have; drops values that mean the default."""
    refusals = []
    for flag in FLAGS.values():
        name = flag.name.replace("-", "_")
        if flag.kind != "same" or name not in values:
            continue
        text = _shown(values[name])
        if text in (flag.harmless or ()):
            del values[name]
        elif flag.refused and text in flag.refused:
            refusals.append(f"--{flag.name} {text}: {flag.refused[text]}")
    return refusals


def _shown(raw: Any) -> str:
    """Returns a raw value as text; empty for a switch."""
    if isinstance(raw, bool):
        return ""
    return raw if isinstance(raw, str) else json.dumps(raw, default=str)
