"""The request of /inference/v1/generate: vLLM's GenerateRequest, with its SamplingParams in `sampling_params`.

The class has the fields of both side by side; TOKENS_FORM says which ones are where. Names and ranges of the sampling
fields are those of completions. https://docs.vllm.ai/en/latest/api/vllm/sampling_params
"""

from typing import Annotated, Any

from pydantic import Field, model_validator

from services.rpc.errors import invalid
from services.shim.apis.body_form import BodyForm
from services.shim.apis.fields import OnlyFalse, no_op, refused, supported
from services.shim.apis.request import GenerationRequest, TokenIds

Mark = Annotated[int, Field(ge=0, le=1)]
Offsets = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class TokensRequest(GenerationRequest):
    logprobs_field = "logprobs"

    token_ids: TokenIds = supported(..., "The prompt.")
    features: None = refused(None, "Media.")
    assistant_tokens_mask: Annotated[list[Mark], Field(fail_fast=True)] | None = no_op(
        None, "A render response has it; it is about the prompt."
    )
    token_offsets: Annotated[list[Offsets], Field(fail_fast=True)] | None = no_op(
        None, "A render response has it; it is about the prompt."
    )
    logprobs: int | None = supported(
        None, "Logprobs of the answer's tokens, and of this many most likely tokens; -1: of all.", ge=-1
    )
    prompt_logprob_token_ids: None = refused(None, "Logprobs of the prompt.")
    prompt_logprob_start: None = refused(None, "Logprobs of the prompt.")
    thinking_token_budget: None = refused(None, "A limit on tokens of reasoning: chats have it.")
    trace_decode_token_ids: None = refused(None, "An answer that the request has already.")
    extra_args: Annotated[dict[str, Any], Field(max_length=0)] = refused({}, "Arguments of vLLM's plugins.")
    skip_reading_prefix_cache: OnlyFalse = refused(False, "A prompt that is computed anew.")
    detokenize: bool = no_op(True, "The response has no text in any case. Needs true with `stop`.")
    flat_logprobs: bool = no_op(False, "How vLLM keeps logprobs.")
    output_kind: int = no_op(0, "`stream` decides.", ge=0, le=2)
    skip_clone: bool = no_op(False, "How vLLM copies parameters.")
    routed_experts_prompt_start: int = no_op(0, "The response has no experts.", ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _check_text(self) -> "TokensRequest":
        if self.stop and not self.detokenize:
            raise invalid("stop is only allowed with detokenize: true", "stop")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


TOKENS_FORM = BodyForm(
    names=frozenset(
        {
            *("request_id", "token_ids", "model", "stream", "stream_options", "cache_salt", "priority"),
            *("features", "assistant_tokens_mask", "token_offsets", "kv_transfer_params"),
        }
    ),
    inner="sampling_params",
    inner_names=frozenset(
        {
            *("n", "seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "ignore_eos"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids"),
            *("stop", "stop_token_ids", "include_stop_str_in_output", "bad_words", "structured_outputs"),
            *("logprobs", "logprob_token_ids", "skip_special_tokens", "spaces_between_special_tokens"),
            *("prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start", "thinking_token_budget"),
            *("trace_decode_token_ids", "extra_args", "skip_reading_prefix_cache", "repetition_detection"),
            *("detokenize", "flat_logprobs", "output_kind", "skip_clone", "routed_experts_prompt_start"),
            "stream_interval",
        }
    ),
    about_inner="How tokens are sampled: vLLM's SamplingParams.",
)
