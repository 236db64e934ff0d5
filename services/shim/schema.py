"""The fields of the requests, as OpenAI and vLLM define them.

A field that is not listed here is refused by name, except inside messages and tools.

https://platform.openai.com/docs/api-reference/chat/create and .../completions/create; the extra fields are vLLM's.
The engine's limits (n, logprobs, stop_token_ids) are checked in parsing.py.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from services.rpc.errors import invalid

MAX_PROMPTS = 1024
MAX_CHOICES = 1024  # prompts times n
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 2**20  # of all stop strings, for all prompts together

TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
ItemT = TypeVar("ItemT")
# Pydantic would otherwise build one error per wrong item, a million for a long list.
FailFastList = Annotated[list[ItemT], Field(fail_fast=True)]
TokenIds = Annotated[FailFastList[TokenId], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Strict):
    include_usage: bool = False


class TextFormat(_Strict):
    type: Literal["text"]


class GenerationRequest(_Strict):
    """The fields that chat and completions share.

    In a sampling field, None is the model's default, else OpenAI's. For `seed`, it is a seed that the engine draws.
    """

    logprobs_field: ClassVar[str]  # name of the field with the number of top logprobs

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = []
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    min_tokens: int = Field(0, ge=0, le=2**31 - 1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=1e4)
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    cache_salt: str = Field("", max_length=1024)
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)

    @model_validator(mode="after")
    def _check(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed together with stream: true", "stream_options")
        limit = self.token_limit
        if limit is not None and self.min_tokens > limit:
            raise invalid(f"min_tokens is {self.min_tokens}, but must be at most max_tokens, {limit}", "min_tokens")
        return self

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def token_limit(self) -> int | None:
        """Maximum number of output tokens; None: the model's default, or as many as its length allows."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Number of top logprobs per token, besides the sampled token's; None: no logprobs."""
        raise AssertionError("each subclass has its own field for it")


class TextPart(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["text"]
    text: str


class ToolCall(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    function: dict[str, Any]


class ChatMessage(BaseModel):
    """One message of a chat. Unknown fields are allowed: the chat template may use them."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | FailFastList[TextPart] | None = None
    tool_calls: FailFastList[ToolCall] | None = None

    @model_validator(mode="after")
    def _check(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise invalid(f"a message with role {self.role} needs content", "messages")
        return self


class FunctionTool(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["function"]
    function: dict[str, Any]


class ChatRequest(GenerationRequest):
    logprobs_field = "top_logprobs"

    messages: FailFastList[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0)
    tools: FailFastList[FunctionTool] | None = Field(None, min_length=1)
    # Tool calls are not parsed from the output yet. With "none", the chat template gets no tools.
    tool_choice: Literal["none", "auto"] = "auto"
    response_format: TextFormat | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs is only allowed together with logprobs: true", "top_logprobs")
        if self.add_generation_prompt and self.continue_final_message:
            raise invalid("continue_final_message needs add_generation_prompt: false", "continue_final_message")
        reserved = self.chat_template_kwargs.keys() & {"messages", "tools", "add_generation_prompt", "chat_template"}
        if reserved:
            raise invalid(f"chat_template_kwargs may not set {sorted(reserved)[0]}", "chat_template_kwargs")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    logprobs_field = "logprobs"

    prompt: (
        str
        | Annotated[FailFastList[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | TokenIds
        | Annotated[FailFastList[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: int | None = Field(16, ge=1, le=2**31 - 1)
    logprobs: int | None = Field(None, ge=0)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_choices(self) -> "CompletionRequest":
        choices = len(self.prompts) * self.n
        if choices > MAX_CHOICES:
            raise invalid(f"{len(self.prompts)} prompts times n = {choices} choices, but at most {MAX_CHOICES}", "n")
        characters = len(self.prompts) * sum(map(len, self.stop_strings))
        if characters > MAX_STOP_CHARACTERS:
            raise invalid(
                f"stop has {characters} characters for {len(self.prompts)} prompts, but at most {MAX_STOP_CHARACTERS}",
                "stop",
            )
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs
