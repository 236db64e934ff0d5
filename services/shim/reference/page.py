"""Writes docs/api.md: `python -m services.shim.reference.page > docs/api.md` (`make docs`)."""

import sys

from services.shim.reference.page_text import AFTER, BEFORE
from services.shim.reference.tables import routes, sections


def markdown() -> str:
    """Returns the page about every route and field."""
    lines = [BEFORE, "## Routes", "", "| route | what it does | API key |", "|---|---|---|"]
    lines += [f"| `{route}` | {summary} | {key} |" for route, summary, key in routes()]
    for section in sections():
        lines += ["", f"## {section.title}", "", "| field | | values | meaning |", "|---|---|---|---|"]
        lines += [f"| `{row.name}` | {row.kind} | {row.values} | {row.description} |" for row in section.rows]
    return "\n".join([*lines, "", AFTER])


if __name__ == "__main__":
    sys.stdout.write(markdown())
