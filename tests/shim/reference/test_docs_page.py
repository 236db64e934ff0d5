"""/docs: every route and field on one page that loads nothing."""

import re
from html import escape
from html.parser import HTMLParser

from services.shim.apis.all import APIS
from services.shim.reference.docs_page import page
from services.shim.reference.tables import routes
from services.version import VERSION
from tests.shim.harness import Shim

VOID = {"meta", "br"}
CLOSED_BY_NEXT = {"td", "th", "tr"}  # HTML lets these end tags out


class Tags(HTMLParser):
    """Collects all tags with their attributes, and the texts of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID | CLOSED_BY_NEXT:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed() -> Tags:
    tags = Tags()
    tags.feed(page())
    tags.close()
    return tags


async def test_the_served_page() -> None:
    async with Shim().http() as http:
        response = await http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == page() and f"tandem {VERSION}" in page()


def test_it_has_every_field_of_every_api() -> None:
    cells = set(re.findall(r"<td>([^<]*)", page()))
    for api in APIS:
        assert not api.request.model_fields.keys() - cells
        for field in api.request.model_fields.values():
            assert escape((field.description or "").split("`")[0]) in page()


def test_it_has_every_route() -> None:
    for route, summary, _ in routes():
        assert route in page() and escape(summary) in page()


def test_it_is_well_formed_and_loads_nothing() -> None:
    """A server without the internet shows it; a policy against scripts does not break it."""
    tags = parsed()
    assert tags.open == []
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert [value for name, value in tags.attributes if name in {"href", "src"}] == ["openapi.json"]
    assert "http://" not in page() and "https://" not in page() and "url(" not in page()
