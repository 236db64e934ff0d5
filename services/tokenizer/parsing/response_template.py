"""Translates a response template, with which transformers parses answers, into tables of this package.

https://huggingface.co/docs/transformers/main/chat_response_parsing. Its fields become states. Not needed: the start
anchor, because the prompt's last message is read anyway, and value parsers, because values have the types of the tool's
schema. Of the whitespace around a value only a line break is layout. What is not known raises Untranslatable.
"""

from collections.abc import Collection, Mapping
from typing import Any

from services.tokenizer.parsing.read_table import table_of
from services.tokenizer.parsing.response_pattern import Anything, Element, Gap, Group, Text, Untranslatable, elements_of
from services.tokenizer.parsing.table import Table

NAME = "response_template"
REASONING_FIELDS = ("thinking", "reasoning", "reasoning_content")
KNOWN_FIELDS = frozenset({*REASONING_FIELDS, "content", "tool_calls", "role"})
OBJECT = (
    "{content}",
    {"name": "{content.name}", "arguments": "{content.arguments}"},
    {"name": "{content.name}", "arguments": "{content.parameters}"},
)
EACH = ({"name": "{name}", "arguments": "{arguments}"}, {"name": "{name}", "arguments": "{parameters}"})
Rules = dict[str, Any]


class _Markers:
    """The markers of a table, by the names that it gives them."""

    def __init__(self, added: Collection[str]) -> None:
        """`added`: the tokenizer's added tokens. A marker is one of them, or has none in it."""
        self._added = added
        self.texts: dict[str, str] = {}

    def names(self, texts: list[str]) -> list[str]:
        return [self.name(text) for text in texts]

    def name(self, text: str) -> str:
        """Returns the marker with this text. Raises Untranslatable for a text that cannot be one."""
        text = text.strip() if text.strip() in self._added else text.lstrip()
        if not text:
            raise Untranslatable("a marker is only whitespace")
        inside = [token for token in self._added if token.strip() and token in text]
        if text not in self._added and inside:
            raise Untranslatable(f"the marker {text!r} is more than the token {inside[0]!r}")
        known = {found: name for name, found in self.texts.items()}
        return known.get(text) or self._new(text)

    def _new(self, text: str) -> str:
        name = f"m{len(self.texts)}"
        self.texts[name] = text
        return name


def reasoning_table(template: Any, added: Collection[str] = ()) -> Table | None:
    """Returns the table of the template's reasoning; None if it has none. Raises Untranslatable."""
    fields = _fields(template)
    names = [name for name in REASONING_FIELDS if name in fields]
    if not names:
        return None
    field, markers = fields[names[0]], _Markers(added)
    if field.get("content", "text") != "text":
        raise Untranslatable(f"{names[0]} is read as {field['content']!r}")
    starts, opens = _reasoning_opens(field)
    closes = _texts(field, "close")
    if not closes:
        raise Untranslatable(f"nothing closes {names[0]}")
    open_names, close_names = markers.names(opens), markers.names(closes)
    content: Rules = {**dict.fromkeys(open_names, "reasoning"), **_content_rules(fields, markers)}
    reasoning: Rules = {**dict.fromkeys(open_names, "reasoning"), **dict.fromkeys(close_names, "content")}
    return _table(
        markers,
        reasoning=[NAME],
        start="reasoning" if starts else "content",
        thinking={"start": markers.texts[open_names[0]] if opens else "", "end": markers.texts[close_names[0]]},
        states={"content": _state("content", content), "reasoning": _state("reasoning", reasoning)},
    )


def tools_table(template: Any, added: Collection[str] = ()) -> Table | None:
    """Returns the table of the template's tool calls; None if it has none. Raises Untranslatable."""
    fields = _fields(template)
    if "tool_calls" not in fields:
        return None
    field, markers = fields["tool_calls"], _Markers(added)
    content_rules = _content_rules(fields, markers)
    function = _function(field)
    kind = field.get("content", "text")
    if kind == "json" and {*_arguments(field)} - {"allow_non_json"}:
        raise Untranslatable("tool_calls is JSON of a dialect")
    if kind == "json" and function in (EACH if field.get("transform_each") else OBJECT):
        opened, states = _json_calls(field, markers, each=bool(field.get("transform_each")))
    elif kind in ("json", "xml-inline") and not field.get("transform_each"):
        opened, states = _named_calls(field, markers, function, xml=kind == "xml-inline")
    else:
        raise Untranslatable(f"tool_calls is read as {kind!r} and becomes {function!r}")
    return _table(markers, tools=[NAME], states={"content": _state("content", {**content_rules, **opened}), **states})


def _fields(template: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(template, dict) or template.get("version", 1) != 1:
        raise Untranslatable("it is no response template of version 1")
    fields = template.get("fields")
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values()):
        raise Untranslatable("its `fields` are no objects")
    if unknown := sorted(fields.keys() - KNOWN_FIELDS):
        raise Untranslatable(f"the field {unknown[0]!r} is not known")
    return fields


def _arguments(field: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = field.get("content_args", {})
    if not isinstance(arguments, dict):
        raise Untranslatable("`content_args` is no object")
    return arguments


def _table(markers: _Markers, **parts: Any) -> Table:
    try:
        return table_of({"markers": markers.texts, **parts})
    except ValueError as error:
        raise Untranslatable(f"its table would be wrong: {error}") from error


def _state(read: str, rules: Rules) -> dict[str, Any]:
    return {"read": read, "on": rules}


def _rule(to: str, *do: str, **more: Any) -> Rules:
    return {"to": to, "do": list(do), **more}


def _content_rules(fields: Mapping[str, Mapping[str, Any]], markers: _Markers) -> Rules:
    """Returns rules that leave out the markers around content, if it has one at its beginning."""
    field = fields.get("content", {})
    opens = _texts(field, "open")
    return dict.fromkeys(markers.names([*opens, *_texts(field, "close")]) if opens else [], "content")


def _reasoning_opens(field: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Returns (whether the answer begins within reasoning, the texts that begin it)."""
    pattern = field.get("open_pattern")
    if isinstance(pattern, str) and pattern.startswith("(?:^|") and pattern.endswith(")"):
        return True, [_only_text(pattern[len("(?:^|") : -1])]
    opens = _texts(field, "open")
    return not opens, opens


def _texts(field: Mapping[str, Any], key: str) -> list[str]:
    """Returns the texts that open or close a field; none if nothing does."""
    pattern = field.get(f"{key}_pattern")
    if isinstance(pattern, str):
        return [_only_text(pattern)]
    texts = field.get(key, [])
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise Untranslatable(f"`{key}` is no text")
    return texts


def _only_text(pattern: str) -> str:
    texts = [element for element in elements_of(pattern) if not isinstance(element, Gap)]
    if len(texts) != 1 or not isinstance(texts[0], Text):
        raise Untranslatable(f"the regular expression {pattern!r} is more than one text")
    return texts[0].text


def _function(field: Mapping[str, Any]) -> Any:
    """Returns what the field's `transform` makes the function of a call."""
    transform = field.get("transform")
    if not isinstance(transform, dict) or {*transform} - {"type", "function"} or "function" not in transform:
        raise Untranslatable("tool_calls has no `transform` with a function")
    return transform["function"]


def _json_calls(field: Mapping[str, Any], markers: _Markers, *, each: bool) -> tuple[Rules, dict[str, Any]]:
    """Returns what opens calls, and the states of calls that are JSON objects, or of a list of such objects."""
    opens = markers.names(_texts(field, "open"))
    closes = dict.fromkeys(markers.names(_texts(field, "close")), "content")
    if not opens:
        raise Untranslatable("nothing opens tool_calls")
    first = "opened" if each else "call"
    again = dict.fromkeys(opens, first)
    states = {
        "call": _state("json_call", {**closes, "done": _rule("between" if each else "after", "end")}),
        "after": _state("content", {**closes, **again}),
    }
    if each:
        comma, end = markers.name(","), markers.name("]")
        states["opened"] = _state("layout", {markers.name("["): "call"})
        states["between"] = _state("layout", {comma: "call", end: "after"})
    return again, states


def _named_calls(
    field: Mapping[str, Any], markers: _Markers, function: Any, *, xml: bool
) -> tuple[Rules, dict[str, Any]]:
    """Returns what opens calls, and the states of calls that are named by a group of `open_pattern`."""
    pattern = field.get("open_pattern")
    before, group, after = _around_group(elements_of(pattern)) if isinstance(pattern, str) else ([], None, [])
    if group is None or not before:
        raise Untranslatable("tool_calls does not open with a text and a name")
    if function != {"name": f"{{{group.name}}}", "arguments": "{content}"}:
        raise Untranslatable(f"tool_calls becomes {function!r}")
    *outer, last = markers.names(before)
    states = {f"open{index}": _state("layout", {name: f"open{index + 1}"}) for index, name in enumerate(outer[1:], 1)}
    states |= {f"open{len(outer)}": _state("layout", {last: "name"})} if outer else {}
    closes = markers.names(_texts(field, "close"))
    ends = [element.text for element in after if isinstance(element, Text)]
    if len(ends) > 1:
        raise Untranslatable("more than one text follows the name")
    free = Anything() in after
    begin = {"when": rf"^\s*(?P<name>{group.pattern})" + ("" if free else r"\s*$")}
    opened = {(outer or [last])[0]: "open1" if outer else "name"}
    if xml:
        return opened, states | _xml_states(field, markers, begin, ends, closes)
    return opened, states | _json_states(markers, begin, ends, closes, opened)


def _around_group(elements: list[Element]) -> tuple[list[str], Group | None, list[Element]]:
    """Returns the texts before the first group, the group, and what follows."""
    texts: list[str] = []
    for index, element in enumerate(elements):
        if isinstance(element, Group):
            return texts, element, elements[index + 1 :]
        if isinstance(element, Anything):
            break
        texts += [element.text] if isinstance(element, Text) else []
    return texts, None, []


def _json_states(
    markers: _Markers, begin: Rules, ends: list[str], closes: list[str], opened: Rules
) -> dict[str, dict[str, Any]]:
    end = markers.name(ends[0] if ends else "{")
    close = dict.fromkeys(closes, "content")
    return {
        "name": _state("name", {end: _rule("arguments", "call", keep=not ends, **begin)}),
        "arguments": _state("json", {**close, "done": _rule("after", "end")}),
        "after": _state("content", {**close, **opened}),
    }


def _xml_states(
    field: Mapping[str, Any], markers: _Markers, begin: Rules, ends: list[str], closes: list[str]
) -> dict[str, dict[str, Any]]:
    """Returns the states of parameters that are tags. What stands between them is ignored, as in transformers."""
    pattern = _arguments(field).get("tag_pattern")
    before, key, rest = _around_group(elements_of(pattern)) if isinstance(pattern, str) else ([], None, [])
    between, value, after = _around_group(rest)
    last = [element.text for element in after if isinstance(element, Text)]
    if key is None or value is None or (key.name, value.name) != ("key", "value") or not closes:
        raise Untranslatable("the parameters of tool_calls are no tags with a key and a value, or nothing closes them")
    if (len(before), len(last)) != (1, 1) or len(between) not in (1, 2) or Anything() in after:
        raise Untranslatable(f"the regular expression {pattern!r} has other texts than around key and value")
    open_key, end_value = markers.name(before[0]), markers.name(last[0])
    *end_key, open_value = markers.names(between)
    finish = dict.fromkeys(closes, _rule("content", "end"))
    names = {markers.name(ends[0]): _rule("parameters", "call", **begin)} if ends else {}
    names = names or {
        open_key: _rule("key", "call", **begin),
        **dict.fromkeys(closes, _rule("content", "call", "end", **begin)),
    }
    states = {
        "name": _state("name", names),
        "key": _state("name", {(end_key or [open_value])[0]: _rule("before" if end_key else "value", "key")}),
        "value": _state("value", {end_value: _rule("parameters", "value")}) | {"trim": Gap() in after},
        "parameters": _state("skip", {open_key: "key", **finish}),
    }
    return states | ({"before": _state("layout", {open_value: "value"})} if end_key else {})
