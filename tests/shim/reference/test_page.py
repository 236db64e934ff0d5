"""docs/api.md is what the code says."""

from pathlib import Path

from services.shim.apis.all import APIS
from services.shim.reference.page import markdown

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_page_is_up_to_date() -> None:
    """Otherwise run `make docs`."""
    assert PAGE.read_text() == markdown()


def test_it_has_every_field() -> None:
    for api in APIS:
        for name in api.request.model_fields:
            assert f"| `{name}` |" in markdown()


def test_every_row_has_the_cells_of_its_table() -> None:
    """A `|` within a cell would break the table."""
    columns = 0
    for line in markdown().splitlines():
        columns = line.count("|") if line.startswith("|") and not columns else columns if line.startswith("|") else 0
        assert not columns or line.count("|") == columns, line
