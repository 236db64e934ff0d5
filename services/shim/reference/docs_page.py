"""/docs: the tables of docs/api.md as one HTML page without scripts, so that it works without the internet."""

import functools
from collections.abc import Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from services.shim.reference.tables import routes, sections
from services.shim.routes import Handler
from services.version import VERSION

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;padding:.3rem .6rem;"
    "text-align:left;vertical-align:top}"
)


def docs_endpoint(root_path: str | None = None) -> Handler:
    """Returns the handler of /docs. `root_path`: the prefix of all paths for clients behind a proxy."""

    async def handler(request: Request) -> Response:
        return HTMLResponse(page(root_path or ""))

    return handler


@functools.cache
def page(root_path: str = "") -> str:
    parts = [_table("Routes", ("route", "what it does", "API key"), routes())]
    for section in sections():
        rows = [(row.name, row.kind, row.values, row.description) for row in section.rows]
        parts.append(_table(section.title, ("field", "", "values", "meaning"), rows))
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    intro = f"<h1>tandem {VERSION}</h1><p><a href=openapi.json>openapi.json</a></p>"
    if root_path:
        intro += f"<p>All routes are below <code>{escape(root_path)}</code>.</p>"
    return f"<!doctype html><html lang=en><title>tandem</title>{head}{intro}{''.join(parts)}</html>"


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(column)}" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}" for cell in row) for row in rows)
    return f"<h2>{_cell(title)}</h2><table><tr>{head}{body}</table>"


def _cell(text: str) -> str:
    """Returns text as HTML; what is in backticks becomes code."""
    parts = [escape(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
