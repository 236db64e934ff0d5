"""The limits hold before anything is compiled, or llguidance's own do: neither takes long or ends the process."""

import time

import pytest

from services.grammar.deep_stack import start_deep
from services.grammar.errors import GrammarError
from services.grammar.limits import MAX_GRAMMAR_BYTES
from services.grammar.matcher import Matcher
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.structured.content import content_fragment
from tests.grammar.vocabularies import demo_tokens
from tests.tokenizer.structured.hostile import hostile_forms

MAX_SECONDS = 1.0  # of processor time, which does not depend on what else runs


def outcome(structured: text_pb2.StructuredOutput) -> tuple[str, float]:
    """Returns why the form is refused, or "compiled", and the seconds. In a deep stack, as it is there."""
    found: list[tuple[str, float]] = []

    def run() -> None:
        structured.field = "f"
        start = time.thread_time()
        try:
            grammar = content_fragment(structured).fragment.text
            assert len(grammar.encode()) <= MAX_GRAMMAR_BYTES
            Matcher(demo_tokens(), grammar).look_ahead()
            message = "compiled"
        except (TandemError, GrammarError) as error:
            message = str(error)
        found.append((message, time.thread_time() - start))

    start_deep(run, "hostile").join()
    return found[0]


@pytest.mark.parametrize(("name", "structured"), [pytest.param(*form, id=form[0]) for form in hostile_forms()])
def test_a_hostile_form_is_compiled_or_refused_within_a_second(
    name: str, structured: text_pb2.StructuredOutput
) -> None:
    demo_tokens()
    message, seconds = outcome(structured)
    assert message
    assert seconds < MAX_SECONDS
