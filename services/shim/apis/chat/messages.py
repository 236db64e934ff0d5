"""The messages of a chat. Unknown fields are allowed: the chat template may use them, and clients echo answers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from services.shim.apis.request import FailFastList

NEEDS_CONTENT = frozenset({"system", "developer", "user", "tool"})


class _Part(BaseModel):
    """A part of a message. Unknown fields, such as cache_control, are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(_Part):
    type: Literal["text", "input_text", "output_text"]
    text: str | None


class RefusalPart(_Part):
    """A part of an echoed assistant message; the chat template gets its text."""

    type: Literal["refusal"]
    refusal: str | None


class ThinkingPart(_Part):
    """A part of an echoed assistant message; the chat template gets its text."""

    type: Literal["thinking"]
    thinking: str | None


KINDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


def _part_tag(part: Any) -> str | None:
    if isinstance(part, str):
        return "type:string"
    kind = part.get("type") if isinstance(part, dict) else None
    return f"type:{KINDS.get(kind, kind)}" if isinstance(kind, str) else None


def _refuse_media(part: Any) -> Any:
    """Names the type of a part that is not text, such as image_url."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        reason = "content of type {kind} is not supported: this server reads text only, in parts of type {known}"
        raise PydanticCustomError("media", reason, {"kind": repr(kind[:64]), "known": known})
    return part


# The tags are no identifiers, so that they do not appear in the path of an error.
Part = Annotated[
    Annotated[str, Tag("type:string")]
    | Annotated[TextPart, Tag("type:text")]
    | Annotated[RefusalPart, Tag("type:refusal")]
    | Annotated[ThinkingPart, Tag("type:thinking")],
    Discriminator(
        _part_tag,
        custom_error_type="part",
        custom_error_message="Input should be an object with type " + ", ".join(map(repr, KINDS)) + ", or a string",
    ),
    BeforeValidator(_refuse_media),
]


class ToolCall(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    function: dict[str, Any]


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    role: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    content: str | FailFastList[Part] | None = None
    tool_calls: FailFastList[ToolCall] | None = None
    function_call: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the content; parts are lines, as in vLLM."""
        if isinstance(self.content, str):
            return self.content
        texts = [part if isinstance(part, str) else getattr(part, KINDS[part.type]) for part in self.content or ()]
        return "\n".join(filter(None, texts))
