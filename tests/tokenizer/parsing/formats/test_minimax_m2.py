"""minimax_m2: <minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>."""

from tests.tokenizer.parsing.drive import Call, answer_of, function, parsed
from tests.tokenizer.parsing.forms import THINK, Format, RandomCall, text_of


def written(calls: list[RandomCall]) -> str:
    """Writes calls as MiniMax-M2's template does."""
    texts = []
    for call in calls:
        values = [
            f'⟦<parameter name="⟧{key}⟦">⟧{text_of(value)}⟦</parameter>⟧\n' for key, value in call.arguments.items()
        ]
        texts.append(f'⟦<invoke name="⟧{call.name}⟦">⟧\n{"".join(values)}⟦</invoke>⟧\n')
    return f"\n⟦<minimax:tool_call>⟧\n{''.join(texts)}⟦</minimax:tool_call>⟧"


FORM = Format(
    tools="minimax_m2",
    calls=written,
    reasoning="minimax_m2",
    closes="\n⟦</think>⟧\n\n",
    added=("<minimax:tool_call>", "</minimax:tool_call>", *THINK),
    value_end="</parameter>",
    value_types=True,
)


TOOLS = [function("f", n="number", s="string")]


def test_several_calls_in_one_block() -> None:
    text = (
        'Think</think>\n\nSure\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1.5</parameter>\n'
        '<parameter name="s">"a" > b</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call>'
    )
    found = answer_of(parsed(text, "minimax_m2", "minimax_m2", tools=TOOLS))
    assert found == ("Think", "Sure", [Call("f", '{"n": 1.5, "s": "\\"a\\" > b"}'), Call("g", "{}")])


def test_a_block_without_a_call_is_content() -> None:
    text = "<minimax:tool_call>\n</minimax:tool_call>"
    assert answer_of(parsed(text, "minimax_m2")) == ("", text, [])


def test_a_call_that_begins_within_another_one_ends_it() -> None:
    """Its parameters are no further ones of the first call."""
    for between in ("", "<minimax:tool_call>\n"):
        first = '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n'
        text = f'{first}{between}<invoke name="g">\n</invoke>\n</minimax:tool_call>'
        found = answer_of(parsed(text, "minimax_m2", tools=TOOLS))
        assert found == ("", "", [Call("f", '{"n": 1}'), Call("g", "{}")])
