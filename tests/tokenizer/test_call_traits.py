"""The probes find out what each template does with calls and results."""

from typing import Any

import pytest

from services.tokenizer.call_traits import CallTraits, call_traits
from services.tokenizer.template_probe import probe_variables
from services.tokenizer.template_sandbox import compiled
from tests.tokenizer.checkpoint_templates import CALLS_AS_TEXT, NAMES, SOURCES, source

WITHOUT_BARE_RESULTS = {
    *("minimax-m2", "gpt-oss", "gemma4", "gemma2", "phi3.5-mini"),
    *("mistral-nemo", "mistral-small-3.2", "ministral3"),  # they count turns
}


def traits_of(text: str, variables: dict[str, str], *, has_tools: bool = True) -> CallTraits:
    template = compiled(text)

    def render(messages: Any, more: Any) -> str:
        return template.render({"documents": None, **variables, **more, "messages": messages})

    return call_traits(render, probe_variables({}, has_tools))


def traits(name: str) -> CallTraits:
    return traits_of(source(name), SOURCES[name]["variables"])


@pytest.mark.parametrize("name", NAMES)
def test_the_traits_of_each_checkpoints_template(name: str) -> None:
    found = traits(name)
    assert found.renders_calls == (name not in CALLS_AS_TEXT)
    assert found.renders_results == found.renders_calls
    assert found.renders_bare_results == (name not in WITHOUT_BARE_RESULTS)
    assert found.arguments_are_text == (name == "phi4-mini")
    assert found.renders_with_content == (name != "phi4-mini")
    if found.renders_calls and found.renders_with_content:
        assert found.renders_several == (name not in {"llama3.1", "llama3.2", "gpt-oss"})
        assert found.takes_any_id == (name not in {"mistral-nemo", "mistral-small-3.2"})
        assert found.takes_reasoning_and_content == (name != "gpt-oss")
        assert found.keeps_text == (name in {"qwen3", "hermes3", "ministral3", "granite4", "gemma4"})


LOOP = "{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}CALL{% else %}{{ m.content }};{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("call", "is_text", "keeps_text"),
    [
        ("{{ m.tool_calls[0].function.arguments }}", True, True),
        ("{{ '{' + m.tool_calls[0].function.arguments + '}' }}", True, True),
        ("{{ m.tool_calls[0].function.arguments | tojson }}", False, False),
        ("{{ m.tool_calls[0].function.arguments.items() | list }}", False, False),
        ("{{ m.tool_calls[0].function | tojson }}", False, False),
    ],
)
def test_the_form_of_the_arguments(call: str, is_text: bool, keeps_text: bool) -> None:
    found = traits_of(LOOP.replace("CALL", call), {})
    assert (found.renders_calls, found.arguments_are_text, found.keeps_text) == (True, is_text, keeps_text)


def test_a_template_with_calls_only_where_content_is_null() -> None:
    """As DeepSeek V3's."""
    text = (
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.arguments | tojson }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    found = traits_of(text, {})
    assert (found.renders_calls, found.empty_content, found.renders_with_content) == (True, None, False)


def test_a_template_that_raises_for_everything_renders_no_calls() -> None:
    assert traits_of("{{ raise_exception('no') }}", {}) == CallTraits(renders_calls=False)


def test_probes_get_the_variables_of_the_request() -> None:
    text = LOOP.replace("CALL", "{{ m.tool_calls[0].function.arguments | tojson if tools }}")
    assert traits_of(text, {}).renders_calls
    assert not traits_of(text, {}, has_tools=False).renders_calls
