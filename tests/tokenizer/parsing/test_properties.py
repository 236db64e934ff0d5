"""The properties of every format (tests/tokenizer/parsing/properties.py): each built-in table has a test file with a
FORM, in tests/tokenizer/parsing/formats."""

import importlib

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from services.tokenizer.parsing.catalog import TABLES
from tests.tokenizer.parsing.forms import Format
from tests.tokenizer.parsing.properties import can_be_written, check_answer, check_soup
from tests.tokenizer.parsing.random_answers import SEEDS, answers, soups

FORMS: dict[str, Format] = {
    file.stem: importlib.import_module(f"tests.tokenizer.parsing.formats.test_{file.stem}").FORM
    for file in sorted(TABLES.glob("*.toml"))
}
# Without shrinking, which takes minutes: the failing answers are short.
EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)

every_format = pytest.mark.parametrize("name", FORMS)
both_ways = pytest.mark.parametrize("as_text", [False, True], ids=["markers-by-id", "markers-by-text"])


@every_format
@both_ways
@EXAMPLES
@given(data=st.data(), seed=SEEDS)
def test_answers_come_back(name: str, as_text: bool, data: st.DataObject, seed: int) -> None:
    form = FORMS[name]
    answer = data.draw(answers(form, as_text=as_text))
    assume(can_be_written(form, answer, as_text=as_text))
    check_answer(form, answer, seed, as_text=as_text)


@every_format
@both_ways
@EXAMPLES
@given(data=st.data(), seed=SEEDS)
def test_no_word_of_broken_output_is_lost(name: str, as_text: bool, data: st.DataObject, seed: int) -> None:
    form = FORMS[name]
    check_soup(form, data.draw(soups(form, calls=False)), seed, as_text=as_text, calls=False)


@every_format
@both_ways
@EXAMPLES
@given(data=st.data(), seed=SEEDS)
def test_broken_calls(name: str, as_text: bool, data: st.DataObject, seed: int) -> None:
    form = FORMS[name]
    check_soup(form, data.draw(soups(form, calls=True)), seed, as_text=as_text, calls=True)
