"""Answers of a random model, one of each form; `make structured-test` draws 2,000, also through a server."""

from services.grammar.errors import GrammarError
from services.rpc.errors import TandemError
from tests.grammar.vocabularies import demo_tokens
from tests.structured.cases import Case, schema_cases, suite, suite_cases, text_cases
from tests.structured.in_process import disagreements, grammar_of, run_answers
from tests.structured.known import REFUSED_ALTHOUGH_VALID
from tests.structured.tally import Tally

MAX_TOKENS = 400


def test_answers_follow_their_schemas() -> None:
    cases = schema_cases()
    tally = run_answers(demo_tokens(), cases, each=1, max_tokens=MAX_TOKENS)
    assert not tally.failures, tally.report("schemas")
    assert not tally.refused
    assert (len(cases), tally.limits) == (300, 0)
    assert tally.bounded > 200
    assert tally.bounded_share >= 0.9


def test_answers_follow_expressions_choices_and_grammars() -> None:
    tally = run_answers(demo_tokens(), text_cases(), each=2, max_tokens=MAX_TOKENS)
    assert not tally.failures, tally.report("texts")
    assert not tally.refused
    assert tally.bounded_share >= 0.9


def test_answers_follow_the_schemas_of_the_suite() -> None:
    cases = suite_cases()
    tally = run_answers(demo_tokens(), cases, each=1, max_tokens=MAX_TOKENS)
    assert not tally.failures, tally.report("suite")
    assert tally.answers >= 0.6 * len(cases)


def test_the_suites_values_are_accepted_as_it_says() -> None:
    found = set()
    for group in suite():
        try:
            grammar = grammar_of(demo_tokens(), Case(group.name, "json", group.schema, bool, bounded=False))
        except (TandemError, GrammarError):
            continue
        wrong, refused = disagreements(demo_tokens(), group, grammar)
        assert not wrong
        found.update(refused)
    assert found == REFUSED_ALTHOUGH_VALID


def test_a_tally_finds_what_does_not_follow() -> None:
    boolean = next(case for case in schema_cases() if case.name == "a boolean")
    tally = Tally()
    tally.add(boolean, b'{"a": 1}', is_complete=True, is_accepted=False)
    assert len(tally.failures) == 2
    (expression,) = (case for case in text_cases() if case.value == "[a-z]+")
    tally.add(expression, b"abc1", is_complete=False, is_accepted=True)
    assert "no answer begins with" in tally.failures[-1]
