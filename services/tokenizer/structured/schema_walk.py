"""Goes through a schema and writes it anew with the keywords that llguidance has."""

import json
from collections.abc import Callable
from typing import Any

from services.grammar.limits import LIMITS
from services.rpc.output_limits import MAX_ALL_CHOICE_CHARACTERS
from services.tokenizer.structured.formats import write_format
from services.tokenizer.structured.intersections import Intersections
from services.tokenizer.structured.one_of import Disjointness
from services.tokenizer.structured.regex import search_regex
from services.tokenizer.structured.schema_dialects import IN_PLACE, entries, has_no_effect, is_anything
from services.tokenizer.structured.schema_ends import endless
from services.tokenizer.structured.schema_place import Place
from services.tokenizer.structured.schema_references import References
from services.tokenizer.structured.schema_values import (
    DROPPED,
    READERS,
    are_few_remainders,
    read_format,
    separate_bounds,
)

MAX_SCHEMAS = 20_000
MAX_DEFINITIONS = 2_000
MAX_OPTIONS = 1_000  # of one anyOf or oneOf
MAX_PROPERTIES = 2_000  # of one object
MAX_OPTIONAL = LIMITS.max_items_in_row // 4 - 5  # optional properties one after the other; each is four items
MAX_PATTERNS = 8  # that the same text must match
CONSTANTS = ("const", "enum")

# Of draft 2020-12 and those before it. They say what is valid, and llguidance has no grammar for them.
UNSUPPORTED = (
    "not",
    "if",
    "uniqueItems",
    "contains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
)
# Supported only in some schemas, see SchemaWalk.
CONDITIONAL = ("oneOf", "minProperties", "maxProperties", "format")

Node = dict[str, Any]


class SchemaWalk:
    """`ignored`: what is not supported and has no effect, as "/properties/a: not"; under `strict` only formats."""

    def __init__(self, document: Any, strict: bool, closes_objects: bool) -> None:
        self.ignored: list[str] = []
        self._document = document
        self._path = ""  # of the document in the client's field
        self._strict = strict
        self._closes_objects = closes_objects
        self._references = References(document)
        self._definitions: dict[str, Any] = {}
        self._names: dict[tuple[str, bool], str] = {}  # path, and whether it is a part of others -> name
        self._places: dict[str, Place] = {}  # of the definitions
        self._waiting: list[tuple[str, Any, Place, bool]] = []  # definitions to be written
        self._one_ofs: list[tuple[Node, Place]] = []
        self._multiples: set[float] = set()  # of all `multipleOf`
        self._has_parts = False  # some schemas hold for the same value
        self._num_schemas = 0
        self._num_characters = 0  # of all constants, as JSON
        self._readers: dict[str, Callable[[Any, Place, bool], Any]] = {
            "properties": self._map,
            "patternProperties": self._patterns,
            "additionalProperties": self._single,
            "items": self._single,
            "prefixItems": self._list,
            "anyOf": self._alternatives,
            "oneOf": self._alternatives,
            "allOf": self._parts,
        }

    def prepare(self, place: Place) -> Node:
        """Returns the schema's new form. Raises TandemError."""
        self._path = place.path
        root = self._schema(self._document, place)
        while self._waiting:
            name, node, found_at, is_part = self._waiting.pop()
            self._places[name] = found_at
            self._definitions[name] = self._schema(node, found_at, is_part)
        if root is False:
            raise place.error("no value is valid for this schema")
        root = {} if root is True else root
        if (without_end := endless(self._definitions)) is not None:
            raise self._places[without_end].error("no value of this schema ever ends")
        if self._has_parts and not are_few_remainders(self._multiples):
            raise place.error('"multipleOf" has too many different values for a schema with combinations')
        if self._has_parts and not Intersections(self._definitions, MAX_PATTERNS).are_few(root):
            raise place.error(f"a text would have to match more than {MAX_PATTERNS} patterns and formats")
        self._check_one_ofs()
        return {**root, "$defs": self._definitions} if self._definitions else root

    def _schema(self, node: Any, place: Place, is_part: bool = False) -> Any:
        """Returns a schema's new form. `is_part`: other schemas hold for the same value."""
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            raise place.error(f"there are more than {MAX_SCHEMAS} schemas")
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise place.error("a schema must be an object or a boolean")
        if is_anything(node.get("not")):
            return False
        is_part = is_part or self._shares(node)
        self._has_parts |= is_part
        new: Node = {}
        for keyword, written, value in entries(node):
            self._keyword(new, node, (keyword, written, value), place, is_part)
        self._has_parts |= write_format(new)
        separate_bounds(new, is_part)
        self._check_properties(new, place)
        self._check_counts(new, place)
        if "multipleOf" in new:
            self._multiples.add(new["multipleOf"])
        if "oneOf" in new:
            self._one_ofs.append((new, place))
        if self._closes_objects and not is_part and "properties" in new and "patternProperties" not in new:
            new.setdefault("additionalProperties", False)
        return new

    def _shares(self, node: Node) -> bool:
        """Whether several of the node's keywords, or schemas in one, say which properties an object may have."""
        keywords = [keyword for keyword in node if keyword in READERS or keyword in self._readers or keyword == "$ref"]
        parts = node.get("allOf")
        return (len(keywords) > 1 and any(keyword in IN_PLACE for keyword in keywords)) or (
            isinstance(parts, list) and len(parts) > 1
        )

    def _keyword(self, new: Node, node: Node, entry: tuple[str, str, Any], place: Place, is_part: bool) -> None:
        keyword, written, value = entry
        if keyword in READERS:
            read = READERS[keyword](value, written, place)
            if keyword in CONSTANTS:
                self._count_constants(read, place / written)
        elif keyword in self._readers:
            read = self._readers[keyword](value, place / written, is_part)
        elif keyword == "$ref":
            read = self._reference(value, node, place / written, is_part)
        elif keyword == "format":
            read = read_format(value, node, place, self.ignored)
        else:
            if keyword in UNSUPPORTED and not has_no_effect(keyword, value, node):
                self._not_supported(keyword, place)
            return
        if read is not DROPPED:
            new[keyword] = read

    def _count_constants(self, value: Any, place: Place) -> None:
        self._num_characters += len(json.dumps(value, ensure_ascii=False))
        if self._num_characters > MAX_ALL_CHOICE_CHARACTERS:
            raise place.error(f"all constants have more than {MAX_ALL_CHOICE_CHARACTERS} characters")

    def _not_supported(self, keyword: str, place: Place) -> None:
        if self._strict:
            raise place.error(f'the keyword "{keyword}" is not supported')
        self.ignored.append(f"{place.shown}: {keyword}")

    def _single(self, value: Any, place: Place, is_part: bool) -> Any:
        return self._schema(value, place)

    def _list(self, value: Any, place: Place, is_part: bool) -> Any:
        return self._parts(value, place, is_part=False)

    def _alternatives(self, value: Any, place: Place, is_part: bool) -> Any:
        if not isinstance(value, list) or not value:
            raise place.error("this must be a list of at least one schema")
        if len(value) > MAX_OPTIONS:
            raise place.error(f"{len(value)} schemas are more than {MAX_OPTIONS}")
        return [self._schema(item, place / index, is_part) for index, item in enumerate(value)]

    def _parts(self, value: Any, place: Place, is_part: bool) -> Any:
        if not isinstance(value, list):
            raise place.error("this must be a list of schemas")
        return [self._schema(item, place / index, is_part) for index, item in enumerate(value)] or DROPPED

    def _map(self, value: Any, place: Place, is_part: bool) -> Any:
        if not isinstance(value, dict):
            raise place.error("this must be an object of schemas")
        return {name: self._schema(item, place / name) for name, item in value.items()}

    def _patterns(self, value: Any, place: Place, is_part: bool) -> Any:
        schemas: Node = self._map(value, place, is_part)
        patterns = {search_regex(name, place.where, (place / name).shown): schema for name, schema in schemas.items()}
        if len(patterns) != len(schemas):
            raise place.error("two patterns are the same")
        return patterns or DROPPED

    def _reference(self, value: Any, node: Node, place: Place, is_part: bool) -> str:
        if not isinstance(value, str):
            raise place.error("this must be a text")
        target, path = self._references.find(value, node, place)
        name = self._names.get((path, is_part))
        if name is None:
            if len(self._names) == MAX_DEFINITIONS:
                raise place.error(f"the references name more than {MAX_DEFINITIONS} schemas")
            name = self._names[path, is_part] = str(len(self._names))
            self._waiting.append((name, target, Place(place.where, self._path + path), is_part))
        return f"#/$defs/{name}"

    def _check_properties(self, new: Node, place: Place) -> None:
        properties, required = new.get("properties", {}), set(new.get("required", ()))
        if len(properties) > MAX_PROPERTIES:
            raise place.error(f"{len(properties)} properties are more than {MAX_PROPERTIES}")
        in_a_row = 0
        for name in properties:
            in_a_row = 0 if name in required else in_a_row + 1
            if in_a_row > MAX_OPTIONAL:
                raise place.error(
                    f"more than {MAX_OPTIONAL} properties in a row are optional, make some of them required"
                )

    def _check_counts(self, new: Node, place: Place) -> None:
        """llguidance has a number of properties only if none is optional; checks and simplifies it."""
        required, properties = new.get("required", ()), new.get("properties", {})
        if new.get("minProperties", 0) <= len(required):
            new.pop("minProperties", None)
        names = len({*required, *properties})
        is_closed = new.get("additionalProperties") is False and "patternProperties" not in new
        if is_closed and new.get("maxProperties", names) >= names:
            new.pop("maxProperties", None)
        if all(name in required for name in properties):
            return
        for keyword in ("minProperties", "maxProperties"):
            if keyword in new and not (is_closed and keyword == "minProperties" and new[keyword] == 1):
                self._not_supported(keyword, place)
                del new[keyword]

    def _check_one_ofs(self) -> None:
        """Replaces every `oneOf` by `anyOf`, which means the same where the alternatives exclude each other."""
        disjointness = Disjointness(self._definitions)
        for node, place in self._one_ofs:
            if not disjointness.holds(node):
                if self._strict:
                    raise place.error('"oneOf" is only supported if its alternatives exclude each other, use "anyOf"')
                self.ignored.append(f"{place.shown}: oneOf")
        for node, _ in self._one_ofs:
            options = {"anyOf": node["oneOf"]}
            items = list(node.items())
            node.clear()
            for keyword, value in items:
                if keyword != "oneOf":
                    node[keyword] = value
                elif "anyOf" not in dict(items):
                    node["anyOf"] = value
            if "anyOf" in dict(items):
                node["allOf"] = [*node.get("allOf", ()), options]
