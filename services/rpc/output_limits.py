"""The limits of an output specification. The shim's schema has them, and the tokenizer checks them again."""

from services.rpc.errors import invalid
from services.rpc.generated import text_pb2

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024


def check_output(output: text_pb2.OutputSpec) -> None:
    """Raises TandemError (INVALID_ARGUMENT) for too many stop strings, for one that is empty or too long, and for a
    tool_choice that is none of the known ones."""
    if len(output.stop) > MAX_STOP_STRINGS:
        raise invalid(f"stop: {len(output.stop)} strings, but at most {MAX_STOP_STRINGS}", "stop")
    for stop in output.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(
                f"stop: a string has {len(stop)} characters, but must have 1 to {MAX_STOP_CHARACTERS}", "stop"
            )
    if output.tool_choice not in text_pb2.ToolChoice.values():
        raise invalid(
            f"tool_choice: {output.tool_choice} is none of {', '.join(text_pb2.ToolChoice.keys())}", "tool_choice"
        )
