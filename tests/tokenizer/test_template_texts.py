"""What a template's source says of strings."""

import jinja2
import pytest

from services.tokenizer.template_texts import texts_of


def test_literals_and_names() -> None:
    texts = texts_of("a <{{ x.field ~ '>' }}{% if y['key'] %} b{% generation %}c{% endgeneration %}{% endif %}")
    assert texts.literals == {"a <", ">", "key", " b", "c"}
    assert texts.names == {"field", ">", "key"}


@pytest.mark.parametrize(
    ("source", "replaced"),
    [
        ("{{ x }}", set()),
        ("{{ x.replace('a', 'b') | replace('c', d) }}", {"a", "c"}),
        ("{{ x.replace(a, 'b') }}", {""}),
        ("{{ replace('a') }}", set()),
    ],
)
def test_replaced_texts(source: str, replaced: set[str]) -> None:
    assert texts_of(source).replaced == replaced


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("{{ x }} lower", False),
        ("{{ x | upper }}", True),
        ("{{ x.lower() }}", True),
        ("{{ x | map('upper') }}", True),
        ("{{ x | title }}", True),
        ("{{ x.title }}", False),
    ],
)
def test_changes_of_case(source: str, changes: bool) -> None:
    assert texts_of(source).changes_case == changes


def test_a_template_that_is_not_valid_raises() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        texts_of("{% if %}")
