"""seed_oss: <seed:think>…</seed:think>."""

from tests.tokenizer.parsing.drive import answer_of, parsed
from tests.tokenizer.parsing.formats.test_hermes import written
from tests.tokenizer.parsing.forms import Format

FORM = Format(
    tools="hermes",
    calls=written,
    reasoning="seed_oss",
    opens="⟦<seed:think>⟧",
    closes="⟦</seed:think>⟧",
    added=("<seed:think>", "</seed:think>", "<tool_call>", "</tool_call>"),
)


def test_reasoning() -> None:
    assert answer_of(parsed("<seed:think>a<think></seed:think>b", None, "seed_oss")) == ("a<think>", "b", [])
