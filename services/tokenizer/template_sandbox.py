"""Compiles chat templates: jinja2's sandbox with the environment that transformers gives them.

Source: https://huggingface.co/docs/transformers/chat_templating. A template reaches no attributes of Python objects and
no files. Its time and memory have no limit here: services/tokenizer/chat_rendering.py sets one.
"""

import datetime
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


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


def environment() -> ImmutableSandboxedEnvironment:
    """Returns what templates are compiled and parsed in."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def compiled(source: str) -> jinja2.Template:
    """Returns the compiled template. Templates are code: a wrong one may raise anything."""
    return environment().from_string(source)
