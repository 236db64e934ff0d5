"""Compiles chat templates: jinja2's sandbox with the environment that transformers gives them.

Source: https://huggingface.co/docs/transformers/chat_templating. A template reaches no attributes of Python objects and
no files; its run time has no limit.
"""

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CASES = frozenset({"lower", "upper", "capitalize", "swapcase", "casefold"})


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its content is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own type)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kwargs)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def compiled(source: str) -> jinja2.Template:
    """Returns the compiled template. Templates are code: a wrong one may raise anything."""
    return _environment().from_string(source)


@dataclass(frozen=True)
class TemplateTexts:
    """A template's source, its literal texts, what it may look for in a request (its constants and fields), the texts
    that it replaces in strings (empty: one that is computed), and whether it changes the case of strings."""

    source: str
    literals: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    changes_case: bool = False


def texts_of(source: str) -> TemplateTexts:
    """Returns a template's texts. May raise anything, as `compiled`."""
    tree = _environment().parse(source)
    written = {node.data for node in tree.find_all(nodes.TemplateData)}
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    filters = {node.name for node in tree.find_all(nodes.Filter)}
    return TemplateTexts(
        source,
        literals=frozenset(written | constants),
        names=frozenset(constants | fields),
        replaced=frozenset(_replaced(tree)),
        changes_case=bool(CASES & (filters | constants | fields)) or "title" in filters,
    )


def _replaced(tree: nodes.Template) -> Iterator[str]:
    """Yields what calls and filters of the name `replace` look for; empty: something computed."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "replace":
            yield _first_text(call.args)
    for one in tree.find_all(nodes.Filter):
        if one.name == "replace":
            yield _first_text(one.args)


def _first_text(arguments: list[nodes.Expr]) -> str:
    first = arguments[0] if arguments else None
    return str(first.value) if isinstance(first, nodes.Const) else ""
