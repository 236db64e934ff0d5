"""How JSON is written under a grammar: the server's settings, and what one request makes of them."""

from dataclasses import dataclass

from services.rpc.generated import text_pb2
from services.tokenizer.structured.whitespace import json_whitespace

MAX_WHITESPACE = 40  # characters between two parts of JSON; an indentation has no more


@dataclass(frozen=True)
class JsonForm:
    """`whitespace` is a regular expression of what may stand once between two parts; empty: nothing may.

    `separators`: what stands between two items, and between a key and its value.
    """

    whitespace: str
    disable_additional_properties: bool = False
    separators: tuple[str, str] = (",", ":")


@dataclass(frozen=True)
class StructuredSettings:
    """The server's `--structured-outputs-config`."""

    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    max_whitespace: int = MAX_WHITESPACE

    def json_form(self, structured: text_pb2.StructuredOutput | None = None) -> JsonForm:
        """Returns the form of a request's JSON; without `structured`, that of its tool calls' arguments.

        The default is a blank, or a line break and its indentation: what models write. It is bounded, because a model
        that is not sure how to go on may write whitespace until its answer is full. Raises TandemError
        (INVALID_ARGUMENT) for a request's pattern that matches anything but whitespace.
        """
        whitespace = rf" |\n[ \t]{{0,{self.max_whitespace - 1}}}"
        no_more_properties = self.disable_additional_properties
        no_whitespace = self.disable_any_whitespace
        if structured is not None:
            no_more_properties |= structured.disable_additional_properties
            no_whitespace |= structured.disable_any_whitespace
            if structured.whitespace_pattern:
                whitespace = json_whitespace(structured.whitespace_pattern, structured.field)
        return JsonForm("" if no_whitespace else whitespace, no_more_properties)
