"""seed_oss: <seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>."""

from tests.tokenizer.parsing.drive import Call, answer_of, function, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall, text_of


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Seed-OSS's template does."""
    texts = []
    for call in calls:
        values = [f"⟦<parameter=⟧{key}⟦>⟧{text_of(value)}⟦</parameter>⟧\n" for key, value in call.arguments.items()]
        texts.append(
            f"⟦<seed:tool_call>⟧\n⟦<function=⟧{call.name}⟦>⟧\n{''.join(values)}⟦</function>⟧\n⟦</seed:tool_call>⟧"
        )
    return "\n".join(texts)


FORM = Format(
    tools="seed_oss",
    calls=written,
    reasoning="seed_oss",
    opens="⟦<seed:think>⟧",
    closes="⟦</seed:think>⟧",
    added=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
    value_end="</parameter>",
    value_types=True,
)


def test_a_value_is_passed_on_exactly() -> None:
    text = "<seed:tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</seed:tool_call>"
    tools = [function("f", s="string")]
    assert answer_of(parsed(text, "seed_oss", tools=tools)) == ("", "", [Call("f", '{"s": "\\nx\\n"}')])


def test_a_call_that_begins_within_another_one_ends_it() -> None:
    """Its parameters are no further ones of the first call."""
    for between in ("", "<seed:tool_call>\n"):
        first = "<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n"
        text = f"{first}{between}<function=g>\n</function>\n</seed:tool_call>"
        found = answer_of(parsed(text, "seed_oss", tools=[function("f", n="integer")]))
        assert found == ("", "", [Call("f", '{"n": 1}'), Call("g", "{}")])
