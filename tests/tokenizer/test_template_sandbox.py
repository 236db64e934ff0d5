"""A chat template reaches no attributes of Python objects and no files, and cannot change the messages."""

import re

import pytest

from services.rpc.errors import TandemError
from services.tokenizer.render import ChatTemplate


def render(template: str) -> str:
    """Renders one message, and asserts that it is unchanged."""
    messages = [{"role": "user", "content": "x"}]
    try:
        return ChatTemplate(template, {}).render(
            messages, None, {}, add_generation_prompt=True, continue_final_message=False
        )
    finally:
        assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "evil",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ tojson.__globals__ }}{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'role': 'system'}) %}",
        "{% set _ = messages[0].pop('content') %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ undefined.field }}",
    ],
)
def test_the_sandbox_refuses(evil: str) -> None:
    """Refused, or rendered without a trace of Python's objects."""
    try:
        text = render(evil)
    except TandemError as error:
        assert error.code == "INVALID_ARGUMENT"
    else:
        assert not re.search("class|object|builtins|import", text), text


@pytest.mark.parametrize("evil", ["{{ ''.__class__.__mro__ }}", "{% set _ = messages.append(1) %}"])
def test_the_sandbox_says_so(evil: str) -> None:
    with pytest.raises(TandemError, match="the chat template refuses these messages: access to"):
        render(evil)


def test_nothing_is_included_from_files() -> None:
    with pytest.raises(TandemError):
        render("{% include '/etc/passwd' %}")
