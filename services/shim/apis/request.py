"""The request fields that all APIs share, as OpenAI and vLLM define them.

A field that an API does not list is refused by name, except inside messages and tools.

https://platform.openai.com/docs/api-reference/chat/create and .../completions/create; the extra fields are vLLM's.
The engine's limits (n, logprobs, token ids) are checked in services/shim/parsing.py.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from services.rpc.errors import invalid
from services.rpc.output_limits import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from services.shim.apis.fields import OnlyFalse, OnlyOne, no_op, refused, supported
from services.shim.apis.structured import StructuredFields
from services.shim.apis.structured_types import Label, Strict

MAX_REQUEST_ID = 256
MAX_BIAS = 100.0
MAX_METADATA = 1024
MAX_TOKEN_ID = 2**32 - 1  # what the wire carries; the engine knows the vocabulary


def _token_id(key: str) -> str:
    if int(key) > MAX_TOKEN_ID:
        limit = {"limit": MAX_TOKEN_ID}
        raise PydanticCustomError("less_than_equal", "Token ids should be less than or equal to {limit}", limit)
    return key


TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
TokenIdKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$"), AfterValidator(_token_id)]
ItemT = TypeVar("ItemT")
# Pydantic would otherwise build one error per wrong item, a million for a long list.
FailFastList = Annotated[list[ItemT], Field(fail_fast=True)]
TokenIds = Annotated[FailFastList[TokenId], Field(min_length=1)]


class StreamOptions(Strict):
    include_usage: bool | None = Field(False, description="The last chunk has the token counts.")
    continuous_usage_stats: bool | None = Field(
        False, description="With include_usage: every chunk has the token counts so far."
    )
    include_obfuscation: bool | None = Field(False, description="No effect: chunks are never padded.")


class GenerationRequest(StructuredFields):
    """The fields that all APIs share. In a sampling field, None is the model's default, else OpenAI's."""

    logprobs_field: ClassVar[str]  # name of the field with the number of top logprobs

    model: str | None = supported(None, "A served model; left out: the first one.")
    stream: bool = supported(False, "Server-sent events, a chunk per event, `[DONE]` at the end.")
    stream_options: StreamOptions | None = supported(None, "Needs stream.")
    n: int = supported(1, "Answers to generate.", ge=1)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = supported(
        [], f"Texts that end the answer, up to {MAX_STOP_STRINGS}; the text before them is returned."
    )
    max_tokens: int | None = supported(None, "The longest answer, in tokens.", ge=1, le=2**31 - 1)
    min_tokens: int = supported(
        0, "No end token, stop id or stop text ends the answer before this many tokens.", ge=0, le=2**31 - 1
    )
    temperature: float | None = supported(None, "0 always takes the most likely token.", ge=0, le=2)
    top_p: float | None = supported(None, "Keeps the most likely tokens up to this probability.", gt=0, le=1)
    top_k: int | None = supported(None, "Keeps this many most likely tokens; 0 or -1: all.", ge=-1, le=2**31 - 1)
    min_p: float | None = supported(None, "Keeps tokens with this fraction of the highest probability.", ge=0, le=1)
    seed: int | None = supported(
        None, "The same seed and request give the same answer; -1: as if left out.", ge=-(2**63), le=2**63 - 1
    )
    presence_penalty: float | None = supported(None, "Lowers tokens that the answer has.", ge=-2, le=2)
    frequency_penalty: float | None = supported(None, "Lowers tokens for each time the answer has them.", ge=-2, le=2)
    repetition_penalty: float | None = supported(
        None, "Divides positive logits (multiplies negative ones) of tokens in prompt and answer.", gt=0, le=1e4
    )
    logit_bias: dict[TokenIdKey, Bias] = supported({}, "Added to the logits of these token ids, -100 to 100.")
    allowed_token_ids: TokenIds | None = supported(None, "Only these token ids are sampled.")
    bad_words: FailFastList[StopString] = supported(
        [], "Texts that the answer does not contain, as sequences of their tokens."
    )
    logprob_token_ids: TokenIds | None = supported(
        None, "Returns the logprobs of these token ids instead of the top ones. Needs logprobs."
    )
    ignore_eos: bool = supported(False, "The model's end tokens do not end the answer.")
    stop_token_ids: FailFastList[TokenId] = supported([], "Further token ids that end the answer.")
    include_stop_str_in_output: bool = supported(False, "The answer includes the stop text that ended it.")
    skip_special_tokens: bool = supported(True, "Special tokens do not appear in the text.")
    spaces_between_special_tokens: bool = supported(True, "False: no spaces between special tokens that appear.")
    truncate_prompt_tokens: Literal[-1] | Annotated[int, Field(ge=1, le=2**31 - 1)] | None = supported(
        None, "Shortens the prompt to this many tokens; -1: to what the context has left."
    )
    truncation_side: Literal["left", "right"] | None = supported(
        None, "Which tokens of a long prompt are dropped: the first (left, the default) or the last ones."
    )
    prompt_logprobs: int | None = supported(
        None, "Logprobs of the prompt's tokens, and of this many most likely ones; -1: of all. Not with stream.", ge=-1
    )
    return_token_ids: bool = supported(False, "The response has the token ids of prompt and answer.")
    return_tokens_as_token_ids: bool = supported(False, "Tokens in logprobs are written as `token_id:123`.")
    return_effective_parameters: bool = supported(
        False, "Each choice has `effective_parameters`: the sampling parameters and the seed that it was made with."
    )
    cache_salt: str = supported("", "Requests with different salts share no cached prefix.", max_length=1024)
    priority: int = supported(
        0, "A lower number is scheduled first. Needs `--scheduling-policy priority`.", ge=-(2**31), le=2**31 - 1
    )
    request_id: str | None = supported(
        None,
        "Becomes part of the response's id. The X-Request-Id header wins, if it is as valid.",
        max_length=MAX_REQUEST_ID,
        pattern=r"^[!-~]+$",
    )
    user: Label | None = no_op(None, "Nothing is kept per user.")
    session_id: Label | None = no_op(None, "Requests of a session need no label to share the prefix cache.")
    store: OnlyFalse = no_op(False, "Answers are never stored.")
    metadata: Annotated[dict[str, Any], Field(max_length=MAX_METADATA)] = no_op({}, "A label of stored answers.")
    service_tier: Literal["auto", "default"] = no_op("auto", "There is one tier.")
    prompt_cache_key: Label | None = no_op(None, "The prefix cache needs no key; see cache_salt.")
    prompt_cache_options: dict[str, Any] | None = no_op(None, "The prefix cache needs no options.")
    prompt_cache_retention: Label | None = no_op(None, "The prefix cache keeps what fits.")
    safety_identifier: Label | None = no_op(None, "Nothing is kept per user.")
    best_of: OnlyOne = no_op(1, "One candidate per answer.")
    use_beam_search: OnlyFalse = refused(False, "Beam search.")
    length_penalty: float = no_op(1.0, "Only for beam search.", ge=1, le=1)
    kv_transfer_params: None = refused(None, "KV cache transfer between servers.")
    vllm_xargs: Annotated[dict[str, Any], Field(max_length=0)] = refused({}, "Arguments of vLLM's plugins.")
    repetition_detection: None = refused(None, "Ends an answer that repeats itself.")
    stream_interval: OnlyOne = no_op(1, "A chunk is sent as soon as there is text.")

    @model_validator(mode="after")
    def _check(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed together with stream: true", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs are not available together with stream: true", "prompt_logprobs")
        limit = self.token_limit
        if limit is not None and self.min_tokens > limit:
            raise invalid(f"min_tokens is {self.min_tokens}, but must be at most max_tokens, {limit}", "min_tokens")
        if self.logprob_token_ids is not None and self.num_logprobs is None:
            raise invalid("logprob_token_ids is only allowed together with logprobs", "logprob_token_ids")
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
        """Number of top logprobs per token, besides the sampled token's; -1: of all tokens; None: no logprobs."""
        raise AssertionError("each subclass has its own field for it")

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Number of top logprobs per prompt token, besides its own; -1: of all tokens; None: no logprobs."""
        return self.prompt_logprobs

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the logprobs of the answer begin with those of the prompt, if the API has that."""
        return False

    def role_of_answer(self, default: str) -> str:
        """Returns the role of the answer's message, if the API has messages; `default`: --response-role."""
        return default

    @property
    def show_reasoning(self) -> bool:
        """Whether the response has the reasoning, if the API separates it from the content."""
        return True

    @property
    def older_function_call(self) -> bool:
        """Whether a tool call has OpenAI's older form, `function_call`, if the API has tools."""
        return False

    @property
    def named_call(self) -> bool:
        """Whether the answer is a call of a function that the request names, if the API has tools."""
        return False

    @property
    def shows_token_strs(self) -> bool:
        """Whether the response has each token as the vocabulary writes it, if it is about a prompt."""
        return False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)
