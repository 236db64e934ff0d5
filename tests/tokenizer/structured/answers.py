"""Which answers a structured output allows, by the matcher itself and the demo model's vocabulary."""

from typing import Any

import pytest

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.structured.content import content_fragment
from services.tokenizer.structured.json_schema import prepared_schema, schema_fragment
from services.tokenizer.structured.settings import StructuredSettings
from tests.grammar.vocabularies import demo_tokens, ids_of

FIELD = "response_format"


def allows(grammar: str, text: str) -> bool:
    """Returns whether the text may be the whole answer."""
    matcher = Matcher(demo_tokens(), grammar)
    try:
        matcher.replay(ids_of(text))
    except GrammarError:
        return False
    return matcher.raw.is_accepting()


def grammar_of(**form: Any) -> str:
    return content_fragment(text_pb2.StructuredOutput(field=FIELD, strict=True, **form)).fragment.text


def schema_grammar(schema: Any, strict: bool = True, settings: StructuredSettings | None = None) -> str:
    text, _ = prepared_schema(schema, strict, FIELD, (settings or StructuredSettings()).json_form())
    return schema_fragment(text, "content_json").text


def ignored(schema: Any, strict: bool = False) -> tuple[str, ...]:
    return prepared_schema(schema, strict, FIELD, StructuredSettings().json_form())[1]


def refusal(schema: Any, strict: bool = True) -> str:
    """Returns why a schema is refused, without the field's name."""
    with pytest.raises(TandemError) as caught:
        prepared_schema(schema, strict, FIELD, StructuredSettings().json_form())
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", FIELD)
    return caught.value.message.removeprefix(f"{FIELD}: ")


def form_refusal(**form: Any) -> str:
    """Returns why a form is refused, without the field's name."""
    with pytest.raises(TandemError) as caught:
        grammar_of(**form)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", FIELD)
    return caught.value.message.removeprefix(f"{FIELD}: ")
