import datetime
import re

import pytest

from services.tokenizer.structured.formats import EXPRESSIONS, write_format


def is_date(text: str) -> bool:
    return re.fullmatch(EXPRESSIONS["date"], text) is not None


@pytest.mark.parametrize("year", [1, 4, 99, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9996, 9999])
def test_the_dates_of_a_year_are_those_of_the_calendar(year: int) -> None:
    for month in range(14):
        for day in range(33):
            try:
                expected = bool(datetime.date(year, month, day))
            except ValueError:
                expected = False
            assert is_date(f"{year:04}-{month:02}-{day:02}") == expected


def test_there_is_no_year_0() -> None:
    assert not is_date("0000-01-01") and not is_date("0000-02-29")


def test_a_format_becomes_a_pattern_beside_another_one() -> None:
    node = {"type": "string", "format": "time"}
    assert not write_format(node)
    assert node == {"type": "string", "pattern": f"^{EXPRESSIONS['time']}$"}
    node = {"pattern": "^1", "format": "time"}
    assert write_format(node)
    assert node == {"pattern": "^1", "allOf": [{"pattern": f"^{EXPRESSIONS['time']}$"}]}


@pytest.mark.parametrize("node", [{"format": "uuid"}, {"type": "string"}])
def test_other_formats_stay(node: dict[str, str]) -> None:
    before = dict(node)
    assert not write_format(node)
    assert node == before
