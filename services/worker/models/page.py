"""The architectures that tandem serves, as `tandem models` prints them and as docs/models.md has them.

`python -m services.worker.models.page > docs/models.md` (or `make docs`) writes the page anew;
tests/worker/models/test_page.py fails when it is stale.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterable, Sequence

from services.worker.models.describe import FAMILIES, Family
from services.worker.models.page_text import DEVICES, INTRODUCTION, NEW_FAMILY
from services.worker.models.rope import TYPES
from services.worker.models.settings import ACTIVATIONS, TRAITS
from services.worker.models.wrappers import WRAPPERS


def listing() -> str:
    """Returns what `tandem models` prints."""
    width = max(map(len, FAMILIES))
    lines = [f"  {name:{width}}  {what(family)}" for name, family in FAMILIES.items()]
    wrappers = [f"  {name}" for name in WRAPPERS]
    devices = [f"  {name:{width}}  {text}" for name, text in DEVICES.items()]
    parts = [
        ("architectures (config.json):", lines),
        ("text models of these, if text_config is of an architecture above:", wrappers),
        ("devices (--device):", devices),
    ]
    return "\n\n".join("\n".join([title, *found]) for title, found in parts) + "\n"


def page() -> str:
    """Returns docs/models.md as Markdown."""
    rows = [f"| `{name}` | {what(family)} |" for name, family in FAMILIES.items()]
    table = "\n".join(["| architecture | models, and what they add to the base decoder |", "|---|---|", *rows])
    devices = "\n".join(
        ["| `--device` | kernels |", "|---|---|", *(f"| `{n}` | {text} |" for n, text in DEVICES.items())]
    )
    parts = [
        _item("Text models of these, if `text_config` is of an architecture above", WRAPPERS),
        _item("Activations (`hidden_act`)", ACTIVATIONS),
        _item("Rotary embeddings (`rope_type`)", TYPES),
        _item("Keys that ask for something else, and are refused where a family does not read them", TRAITS),
    ]
    return "\n\n".join([INTRODUCTION, table, "\n".join(parts), "## Devices", devices, NEW_FAMILY]) + "\n"


def what(family: Family) -> str:
    """Returns a line about a family: the first sentence of its module."""
    text = inspect.getdoc(family.module) or ""
    return " ".join(text.split()).rstrip(".")


def _item(title: str, names: Iterable[str]) -> str:
    text = f"- {title}: " + ", ".join(f"`{name}`" for name in names)
    return textwrap.fill(text, 118, subsequent_indent="  ", break_on_hyphens=False)


def main(argv: Sequence[str] = ()) -> int:
    """Prints the listing (`tandem models`). Returns the exit status: 2 for an argument."""
    if argv:
        sys.stderr.write(f"tandem models: error: unexpected argument {argv[0]!r}\n")
        return 2
    sys.stdout.write(listing())
    return 0


if __name__ == "__main__":
    sys.stdout.write(page())
