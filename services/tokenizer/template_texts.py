"""What a chat template's source says of the strings that it prints, looks for and changes; it is not rendered."""

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import nodes

from services.tokenizer.template_sandbox import environment

CASES = frozenset({"lower", "upper", "capitalize", "swapcase", "casefold"})


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
    tree = environment().parse(source)
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
