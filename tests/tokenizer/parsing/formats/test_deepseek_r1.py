"""deepseek_r1, minimax_m2: …</think>, the answer begins within reasoning."""

from tests.tokenizer.parsing.drive import answer_of, parsed
from tests.tokenizer.parsing.formats.test_hermes import written
from tests.tokenizer.parsing.forms import THINK, Format

FORM = Format(tools="hermes", calls=written, reasoning="deepseek_r1", closes="\n⟦</think>⟧\n\n", added=THINK)


def test_the_answer_begins_within_reasoning() -> None:
    for text in ("a</think>b", "<think>a</think>b", "\n<think>\na\n</think>\n\nb"):
        assert answer_of(parsed(text, None, "deepseek_r1")) == ("a", "b", [])
    assert answer_of(parsed("a", None, "deepseek_r1")) == ("a", "", [])
