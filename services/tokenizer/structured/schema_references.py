"""Finds what `$ref` names in a schema: a JSON pointer, an anchor, or a schema of the same document by its `$id`.

Nothing is ever fetched. https://json-schema.org/draft/2020-12/json-schema-core#section-8
"""

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from services.tokenizer.structured.schema_place import Place


class References:
    def __init__(self, document: Any) -> None:
        self._bases: dict[int, str] = {}  # id of an object of the document -> the URI that its references start from
        self._named: dict[str, tuple[Any, str]] = {"": (document, "")}  # URI -> schema and its path
        stack: list[tuple[Any, str, str]] = [(document, "", "")]
        while stack:
            node, base, path = stack.pop()
            if isinstance(node, dict):
                base = self._add(node, base, path)
            items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            stack += [(item, base, f"{path}/{_escaped(key)}") for key, item in items if isinstance(item, (dict, list))]

    def _add(self, node: dict[str, Any], base: str, path: str) -> str:
        """Remembers the object's names; returns the URI that references in it start from."""
        identifier = node.get("$id")
        if isinstance(identifier, str):
            base = urldefrag(_joined(base, identifier)).url
            self._named.setdefault(base, (node, path))
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self._named.setdefault(f"{base}#{node[keyword]}", (node, path))
        self._bases[id(node)] = base
        return base

    def find(self, reference: str, node: Any, place: Place) -> tuple[Any, str]:
        """Returns the schema that a reference in the object `node` names, and its path. Raises TandemError."""
        uri, fragment = urldefrag(_joined(self._bases.get(id(node), ""), reference))
        if not fragment or fragment.startswith("/"):
            found = self._named.get(uri)
            found = found and _followed(*found, unquote(fragment))
        else:
            found = self._named.get(f"{uri}#{unquote(fragment)}")
        if found is None:
            raise place.error(f'the reference "{reference[:100]}" is not in the schema')
        return found


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # a malformed address
        return reference


def _followed(node: Any, path: str, pointer: str) -> tuple[Any, str] | None:
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
        path += f"/{_escaped(key)}"
    return node, path


def _escaped(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
