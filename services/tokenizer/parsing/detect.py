"""Selects the formats of a model's answers: by the options, else by its response template, its chat template, its type.

One log line says which formats and why. A format that is not found stays None: its text is content.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.errors import Fatal
from services.tokenizer.parsing.catalog import Catalog, built_in
from services.tokenizer.parsing.check_table import NONE
from services.tokenizer.parsing.read_table import read_table
from services.tokenizer.parsing.response_pattern import Untranslatable
from services.tokenizer.parsing.response_template import NAME, reasoning_table, tools_table
from services.tokenizer.parsing.table import Detect, Table

log = logging.getLogger(__name__)
TOOLS, REASONING = "--tool-call-parser", "--reasoning-parser"


@dataclass(frozen=True)
class Wanted:
    """The options of the formats: their names; "none": no format; None or "": found by itself. `plugin`: a table."""

    tools: str | None = None
    reasoning: str | None = None
    plugin: str | None = None


@dataclass(frozen=True)
class ModelFiles:
    """What a model's files say of its format. `chat_template`: None without one. `response_template`: that of
    tokenizer_config.json, of any type; None without one. `added_tokens`: the texts of the tokenizer's."""

    chat_template: str | None = None
    model_type: str = ""
    response_template: Any = None
    added_tokens: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """A table with the name that selects it, or none, and the reason."""

    table: Table | None
    reason: str
    name: str = NONE
    by_name: bool = False


@dataclass(frozen=True)
class Formats:
    """The tables of a model's answers; None: its calls, or its reasoning, are content."""

    tools: Table | None
    reasoning: Table | None


@dataclass(frozen=True)
class _Kind:
    """One of the two kinds of formats: its option, the tables that may be selected by name, the plugin's among them,
    and the function that translates a response template."""

    option: str
    wanted: str | None
    tables: Mapping[str, Table]
    plugin: Table | None
    translate: Callable[[Any, Collection[str]], Table | None] = field(repr=False)


def select_formats(wanted: Wanted, files: ModelFiles) -> Formats:
    """Returns the model's formats, and logs which and why.

    Raises Fatal for a name that does not exist, a plugin that is no table, and two names that do not go together.
    """
    plugin = read_plugin(Path(wanted.plugin)) if wanted.plugin else None
    catalog = built_in().with_table(plugin) if plugin is not None else built_in()
    tools, reasoning = (_found(kind, files) for kind in _kinds(wanted, catalog, plugin))
    tools, reasoning = _together(tools, reasoning)
    if plugin is not None and not plugin.detections and plugin not in (tools.table, reasoning.table):
        raise Fatal(f"--tool-parser-plugin: nothing selects {plugin.name}: it has no `detect`, and no option names it")
    log.info("tool calls: %s; reasoning: %s", _described(tools), _described(reasoning))
    return Formats(tools.table, reasoning.table)


def read_plugin(file: Path) -> Table:
    """Returns the table of --tool-parser-plugin. Raises Fatal for a file that is none."""
    if file.suffix not in (".toml", ".json"):
        raise Fatal(
            f"--tool-parser-plugin: {file} is not a .toml or .json file. Here a plugin is a table that describes the"
            " format as data, and no Python file as in vLLM: docs/tools.md"
        )
    return read_table(file)


def _kinds(wanted: Wanted, catalog: Catalog, plugin: Table | None) -> tuple[_Kind, _Kind]:
    return (
        _Kind(TOOLS, wanted.tools, catalog.tools, plugin if plugin and plugin.tools else None, tools_table),
        _Kind(
            REASONING,
            wanted.reasoning,
            catalog.reasoning,
            plugin if plugin and plugin.reasoning else None,
            reasoning_table,
        ),
    )


def _found(kind: _Kind, files: ModelFiles) -> Found:
    if kind.wanted == NONE:
        return Found(None, f"{kind.option} is {NONE}", by_name=True)
    if kind.wanted:
        if kind.wanted not in kind.tables:
            raise Fatal(f"{kind.option}: there is no {kind.wanted!r}, only {', '.join(sorted(kind.tables))}, {NONE}")
        return Found(kind.tables[kind.wanted], kind.option, kind.wanted, by_name=True)
    own = {name: table for name, table in kind.tables.items() if table is kind.plugin}
    others = {name: table for name, table in kind.tables.items() if table is not kind.plugin}
    found = _fitting(kind, own, files) or _from_response_template(kind, files) or _fitting(kind, others, files)
    return found or Found(None, f"not found by the chat template or the model's type; {kind.option} names one")


def _from_response_template(kind: _Kind, files: ModelFiles) -> Found | None:
    if files.response_template is None:
        return None
    try:
        table = kind.translate(files.response_template, files.added_tokens)
    except Untranslatable as error:
        log.info("%s: response_template in tokenizer_config.json has no effect: %s", kind.option, error)
        return None
    return Found(table, "in tokenizer_config.json", NAME) if table is not None else None


def _fitting(kind: _Kind, tables: Mapping[str, Table], files: ModelFiles) -> Found | None:
    """Returns the format that the chat template, or else the model's type, fits; None if there is none."""
    for by_text in (True, False):
        fits = {name: table for name, table in tables.items() if _fit(table, files, by_text)}
        if len({*map(id, fits.values())}) > 1:
            return Found(None, f"the model's files fit several: {', '.join(fits)}; {kind.option} names one")
        for name, table in fits.items():
            return Found(table, _fit(table, files, by_text), name)
    return None


def _fit(table: Table, files: ModelFiles, by_text: bool) -> str:
    """Returns why a table fits; "" if it does not. `by_text`: of its ways to be recognised, those by texts."""
    ways = (way for way in table.detections if bool(way.template) == by_text)
    return next((why for way in ways if (why := _fit_of(way, files))), "")


def _fit_of(way: Detect, files: ModelFiles) -> str:
    template = files.chat_template or ""
    if not all(text in template for text in way.template) or any(text in template for text in way.template_without):
        return ""
    if way.model_types and files.model_type not in way.model_types:
        return ""
    if way.template:
        return f"the chat template has {' and '.join(way.template)}"
    return f"the model's type is {files.model_type}" if way.model_types else ""


def _together(tools: Found, reasoning: Found) -> tuple[Found, Found]:
    """A table that describes whole answers goes with no other one: a name wins over what was found by itself.

    Raises Fatal for two names that do not go together.
    """
    one, other = tools.table, reasoning.table
    if one is None or other is None or one is other or not (one.is_whole or other.is_whole):
        return tools, reasoning
    if tools.by_name and reasoning.by_name:
        whole, kind, alone = (one, REASONING, one.reasoning) if one.is_whole else (other, TOOLS, other.tools)
        raise Fatal(f"{whole.name} describes whole answers, so {kind} must be {alone[0]} or {NONE}")
    if reasoning.by_name:
        return Found(None, f"{REASONING} names another format; {TOOLS} names one"), reasoning
    return tools, Found(None, f"the format of the tool calls is another one; {REASONING} names one")


def _described(found: Found) -> str:
    return f"{found.name} ({found.reason})"
