"""The request of /v1/chat/completions. https://platform.openai.com/docs/api-reference/chat/create"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from services.rpc.errors import invalid
from services.shim.apis.chat.messages import NEEDS_CONTENT, ChatMessage
from services.shim.apis.chat.tools import (
    MAX_TOOLS,
    CallMode,
    FunctionChoice,
    FunctionTool,
    ToolChoice,
    mode_of,
    names_in,
)
from services.shim.apis.fields import OnlyFalse, no_op, refused, supported
from services.shim.apis.request import FailFastList, GenerationRequest

MAX_DOCUMENTS = 1024
MAX_TEMPLATE_CHARACTERS = 2**18
# What the chat template gets from other fields of the request.
RESERVED_KWARGS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
)


class ChatRequest(GenerationRequest):
    logprobs_field = "top_logprobs"

    messages: FailFastList[ChatMessage] = supported(
        ..., "Roles are the chat template's business; a message that it drops is refused.", min_length=1
    )
    max_completion_tokens: int | None = supported(None, "OpenAI's newer name of max_tokens.", ge=1, le=2**31 - 1)
    logprobs: bool = supported(False, "Logprobs of the answer's tokens.")
    top_logprobs: int | None = supported(
        None, "Logprobs of this many most likely tokens as well; -1: of all. Needs logprobs.", ge=-1
    )
    tools: Annotated[FailFastList[FunctionTool], Field(max_length=MAX_TOOLS)] | None = supported(
        None, "Functions that the model may call; the chat template gets them. `strict: true`: a call fits its schema."
    )
    tool_choice: ToolChoice = supported(
        "auto",
        "With none, calls stay text; the chat template gets the tools still. The answer to required is one or several"
        " calls, that to a named function one call of it. allowed_tools: calls of these tools only.",
    )
    parallel_tool_calls: bool = supported(True, "False: the first call ends the answer.")
    functions: Annotated[FailFastList[dict[str, Any]], Field(max_length=MAX_TOOLS)] = supported(
        [], "OpenAI's older form of tools: the answer has at most one call, as `function_call`."
    )
    function_call: FunctionChoice = supported(
        "auto", "tool_choice for functions: none, auto, or an object with a name."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = supported(
        None, "The chat template gets it, and enable_thinking, which is false for none."
    )
    include_reasoning: bool = supported(
        True, "False: the response has no reasoning. Usage, token ids and logprobs count its tokens all the same."
    )
    thinking_token_budget: int | None = supported(
        None, "The most tokens of reasoning: after them its end is forced; -1: no limit.", ge=-1, le=2**31 - 1
    )
    verbosity: Literal["low", "medium", "high"] | None = supported(
        None, "The chat template gets it; no effect if the template does not know it."
    )
    documents: Annotated[FailFastList[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None = supported(
        None, "The chat template gets them."
    )
    chat_template: str | None = supported(
        None,
        "A Jinja template instead of the model's. Needs `--trust-request-chat-template`.",
        max_length=MAX_TEMPLATE_CHARACTERS,
    )
    chat_template_kwargs: dict[str, Any] = supported({}, "Further variables of the chat template.")
    add_generation_prompt: bool = supported(True, "The prompt ends with the header of the assistant's message.")
    continue_final_message: bool = supported(False, "The answer continues the last message.")
    echo: bool = supported(False, "The answer begins with the last message's text, if that has the answer's role.")
    add_special_tokens: bool = supported(False, "The tokenizer adds its special tokens to the rendered prompt.")
    modalities: list[Literal["text"]] = no_op(["text"], "Only text is generated.", max_length=1)
    prediction: dict[str, Any] | None = no_op(None, "A hint for speed; the answer is the same.")
    audio: None = refused(None, "Spoken answers.")
    moderation: None = refused(None, "Moderation of prompt and answer.")
    web_search_options: None = refused(None, "Search in the web.")
    media_io_kwargs: Annotated[dict[str, Any], Field(max_length=0)] = refused({}, "Options for media.")
    mm_processor_kwargs: Annotated[dict[str, Any], Field(max_length=0)] = refused({}, "Options for media.")
    return_prompt_text: OnlyFalse = refused(False, "The rendered prompt in the response.")

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatRequest":
        self._check_content()
        self._check_tools()
        if self.top_logprobs is not None and self.top_logprobs != 0 and not self.logprobs:
            raise invalid("top_logprobs is only allowed together with logprobs: true", "top_logprobs")
        if self.add_generation_prompt and self.continue_final_message:
            raise invalid("continue_final_message needs add_generation_prompt: false", "continue_final_message")
        reserved = self.chat_template_kwargs.keys() & RESERVED_KWARGS
        if reserved:
            raise invalid(f"chat_template_kwargs may not set {sorted(reserved)[0]}", "chat_template_kwargs")
        return self

    def _check_content(self) -> None:
        for index, message in enumerate(self.messages):
            if message.content is None and message.role in NEEDS_CONTENT:
                raise invalid(
                    f"messages.{index}: a message with role {message.role} needs content", f"messages.{index}.content"
                )

    def _check_tools(self) -> None:
        """The older fields and the newer ones are not mixed, so that no value is ignored."""
        if self.functions and self.tools:
            raise invalid("functions is only allowed without tools", "functions")
        if self.functions and self.tool_choice != "auto":
            raise invalid("tool_choice belongs to tools: with functions, use function_call", "tool_choice")
        if self.tools and self.function_call != "auto":
            raise invalid("function_call belongs to functions: with tools, use tool_choice", "function_call")
        field, tools = ("tool_choice", "tools") if self.function_call == "auto" else ("function_call", "functions")
        if self.call_mode in ("required", "named") and not self.has_tools:
            raise invalid(f"{field} asks for a call, but there are no {tools}", field)
        functions = self.functions or [tool.function for tool in self.tools or ()]
        known = [function.get("name") for function in functions]
        for name in self.named_tools:
            if name not in known:
                raise invalid(f"{field}: there is no function {name!r} in {tools}", field)

    @property
    def has_tools(self) -> bool:
        return bool(self.tools or self.functions)

    @property
    def _call_choice(self) -> Any:
        return self.tool_choice if self.function_call == "auto" else self.function_call

    @property
    def call_mode(self) -> CallMode:
        """What becomes of tool calls; none: they stay text."""
        return mode_of(self._call_choice)

    @property
    def named_tools(self) -> list[str]:
        """The names of the only tools that the answer may call; empty: all."""
        return names_in(self._call_choice)

    @property
    def named_call(self) -> bool:
        return self.call_mode == "named"

    @property
    def older_function_call(self) -> bool:
        return bool(self.functions)

    @property
    def show_reasoning(self) -> bool:
        return self.include_reasoning

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def role_of_answer(self, default: str) -> str:
        """Without a generation prompt, the answer has the role of the last message, as in vLLM."""
        return default if self.add_generation_prompt else self.messages[-1].role

    def echoed_text(self, response_role: str) -> str:
        """Returns the text that the answer begins with. `response_role`: --response-role."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == self.role_of_answer(response_role) else ""

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The variables that the chat template gets besides messages, tools and documents.

        reasoning_effort also sets enable_thinking, unless chat_template_kwargs does, as in vLLM.
        """
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort = {"reasoning_effort": self.reasoning_effort, "enable_thinking": self.reasoning_effort != "none"}
        verbosity = {"verbosity": self.verbosity} if self.verbosity is not None else {}
        return {**effort, **verbosity, **self.chat_template_kwargs}
