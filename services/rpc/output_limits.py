"""The limits of an output specification. The shim's schema has them, and the tokenizer checks them again."""

from collections.abc import Sequence

from services.rpc.errors import TandemError, invalid
from services.rpc.generated import text_pb2

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024  # of one stop string, or one bad word
MAX_TOOLS_BYTES = 2**20  # reading more would hold up the other requests of the process
MAX_SCHEMA_BYTES = 2**20  # of a JSON Schema, or of a structural tag with its schemas
MAX_SCHEMA_DEPTH = 100
MAX_CHOICE_TEXTS = 10_000
MAX_CHOICE_CHARACTERS = 4_096  # of one text
MAX_ALL_CHOICE_CHARACTERS = 200_000
MAX_REGEX_CHARACTERS = 20_000  # also of a pattern of whitespace
MAX_GRAMMAR_CHARACTERS = 65_536
ENFORCED_CALLS = (text_pb2.TOOL_CHOICE_REQUIRED, text_pb2.TOOL_CHOICE_NAMED)


def check_output(output: text_pb2.OutputSpec) -> None:
    """Raises TandemError (INVALID_ARGUMENT) for too many stop strings, for one that is empty or too long, for a
    tool_choice that is none of the known ones or lacks its tools, for a bad word, tools or a form of the answer that
    are too large.

    Whether the tools of `allowed_tools` exist is seen where the tools are read.
    """
    if len(output.stop) > MAX_STOP_STRINGS:
        raise invalid(f"stop: {len(output.stop)} strings, but at most {MAX_STOP_STRINGS}", "stop")
    for stop in output.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(
                f"stop: a string has {len(stop)} characters, but must have 1 to {MAX_STOP_CHARACTERS}", "stop"
            )
    for index, word in enumerate(output.bad_words):
        if len(word) > MAX_STOP_CHARACTERS:
            raise _too_large(f"bad_words.{index}", len(word), "characters", MAX_STOP_CHARACTERS)
    if len(output.tools_json) > MAX_TOOLS_BYTES:
        raise _too_large("tools", len(output.tools_json), "bytes", MAX_TOOLS_BYTES)
    _check_calls(output)
    if output.HasField("structured"):
        check_structured(output.structured)


def _check_calls(output: text_pb2.OutputSpec) -> None:
    choice = output.tool_choice
    if choice not in text_pb2.ToolChoice.values():
        raise invalid(f"tool_choice: {choice} is none of {', '.join(text_pb2.ToolChoice.keys())}", "tool_choice")
    if choice in ENFORCED_CALLS and not output.tools_json:
        raise invalid(f"tool_choice: {text_pb2.ToolChoice.Name(choice)} needs tools", "tool_choice")
    if choice == text_pb2.TOOL_CHOICE_NAMED and len(output.allowed_tools) != 1:
        raise invalid(
            f"allowed_tools: {len(output.allowed_tools)} names, but TOOL_CHOICE_NAMED has exactly one", "allowed_tools"
        )


def check_structured(structured: text_pb2.StructuredOutput) -> None:
    """Raises TandemError (INVALID_ARGUMENT) for a form that is missing, empty or too large."""
    form = structured.WhichOneof("form")
    if form is None or (form == "json_object" and not structured.json_object):
        raise invalid("structured: no form is set", structured.field or "structured")
    field = structured.field or f"structured.{form}"
    if form in ("json_schema", "structural_tag"):
        _check_size(field, len(getattr(structured, form)), "bytes", MAX_SCHEMA_BYTES)
    elif form == "regex":
        _check_size(field, len(structured.regex), "characters", MAX_REGEX_CHARACTERS)
    elif form == "grammar":
        _check_size(field, len(structured.grammar), "characters", MAX_GRAMMAR_CHARACTERS)
    elif form == "choices":
        _check_choices(field, structured.choices.texts)
    if len(structured.whitespace_pattern) > MAX_REGEX_CHARACTERS:
        raise _too_large("whitespace_pattern", len(structured.whitespace_pattern), "characters", MAX_REGEX_CHARACTERS)


def _check_choices(field: str, texts: Sequence[str]) -> None:
    _check_size(field, len(texts), "texts", MAX_CHOICE_TEXTS)
    for text in texts:
        _check_size(field, len(text), "characters in a text", MAX_CHOICE_CHARACTERS)
    _check_size(field, sum(map(len, texts)), "characters in all", MAX_ALL_CHOICE_CHARACTERS)


def _check_size(field: str, size: int, unit: str, limit: int) -> None:
    if size == 0:
        raise invalid(f"{field}: must not be empty", field)
    if size > limit:
        raise _too_large(field, size, unit, limit)


def _too_large(field: str, size: int, unit: str, limit: int) -> TandemError:
    return invalid(f"{field}: {size} {unit}, but at most {limit}", field)
