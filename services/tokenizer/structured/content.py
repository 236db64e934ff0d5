"""The content of an answer as a part of its grammar, from any of the forms that a client may ask for."""

from dataclasses import dataclass

from services.grammar.fragment import Fragment, literal
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.rpc.output_limits import MAX_GRAMMAR_CHARACTERS
from services.tokenizer.structured.choices import choice_fragment
from services.tokenizer.structured.ebnf import DEFINES, lark_of_ebnf
from services.tokenizer.structured.json_input import read_json
from services.tokenizer.structured.json_schema import prepared_schema, schema_fragment
from services.tokenizer.structured.lark import checked_lark
from services.tokenizer.structured.regex import whole_regex
from services.tokenizer.structured.settings import JsonForm, StructuredSettings
from services.tokenizer.structured.structural_tag import tag_fragment


@dataclass(frozen=True)
class Content:
    """`ignored_keywords`: as "/properties/a: not"."""

    fragment: Fragment
    ignored_keywords: tuple[str, ...] = ()


def content_fragment(structured: text_pb2.StructuredOutput, settings: StructuredSettings | None = None) -> Content:
    """Returns the grammar of the content. Names of rules begin with `content_`, of terminals with `CONTENT_`.

    Raises TandemError (INVALID_ARGUMENT) with the client's field for what is malformed, too large or not supported.
    Takes time in proportion to the client's input: run it in a thread if that is large.
    """
    where = structured.field
    form = (settings or StructuredSettings()).json_form(structured)
    match structured.WhichOneof("form"):
        case "json_schema":
            schema = read_json(structured.json_schema, where)
            text, ignored = prepared_schema(schema, structured.strict, where, form)
            return Content(schema_fragment(text, "content_json"), ignored)
        case "json_object":
            text, _ = prepared_schema({"type": "object"}, True, where, form)
            return Content(schema_fragment(text, "content_json"))
        case "regex":
            pattern = whole_regex(structured.regex, where)
            body = f"/{pattern}/" if pattern else literal("")
            return Content(Fragment("CONTENT_REGEX", (f"CONTENT_REGEX: {body}",)))
        case "choices":
            return Content(choice_fragment(structured.choices.texts, where, "CONTENT_CHOICE"))
        case "grammar":
            return Content(_grammar(structured.grammar, where, form))
        case "structural_tag":
            tag = read_json(structured.structural_tag, where)
            return Content(*tag_fragment(tag, structured.strict, where, form))
    raise invalid(f"{where}: no form of structured output is given", where)


def _grammar(text: str, where: str, form: JsonForm) -> Fragment:
    """Returns a grammar in Lark or EBNF, nested: its names, and what it ignores, stay its own."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise invalid(f"{where}: the grammar has more than {MAX_GRAMMAR_CHARACTERS} characters", where)
    lark = lark_of_ebnf(text, where) if DEFINES.search(text) else checked_lark(text, where, form)
    return Fragment("content_grammar", (f"content_grammar: %lark {{\n{lark}\n}}",))
