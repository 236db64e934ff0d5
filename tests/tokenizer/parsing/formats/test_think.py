"""qwen3, glm45: <think>…</think>; here with the calls of GLM-4.7."""

import functools

from tests.tokenizer.parsing.drive import answer_of, parsed
from tests.tokenizer.parsing.formats.test_glm45 import FORM as GLM45
from tests.tokenizer.parsing.formats.test_glm45 import written
from tests.tokenizer.parsing.forms import THINK, Format

FORM = Format(
    tools="glm47",
    calls=functools.partial(written, space=""),
    reasoning="glm45",
    opens="⟦<think>⟧",
    closes="⟦</think>⟧",
    added=THINK,
    value_end=GLM45.value_end,
    value_types=True,
)


def test_reasoning() -> None:
    assert answer_of(parsed("<think>\na\n</think>\n\nb\n", None, "qwen3")) == ("a", "b\n", [])
    assert answer_of(parsed("<think>\n\n</think>\n\nb", None, "qwen3")) == ("", "b", [])
    assert answer_of(parsed("<think>a", None, "qwen3")) == ("a", "", [])
    assert answer_of(parsed("a </think> b", None, "qwen3")) == ("", "a </think> b", [])
    assert answer_of(parsed("<think>a</think>b </think> c", None, "qwen3")) == ("a", "b </think> c", [])
