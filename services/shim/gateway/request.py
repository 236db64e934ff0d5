"""vLLM's GenerateRequest as a checked request, and as the submit for the tokenizer. What tandem lacks is refused."""

from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.columns import pack_u32
from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.output_limits import MAX_CHOICE_TEXTS, MAX_STOP_STRINGS
from services.rpc.prompt_limits import check_num_ids
from services.shim.apis.submit import SubmitContext, add_form, base_submit
from services.shim.gateway.schema import GatewayRequest
from services.shim.parsing import check_count, validate

# proto3 says of these whether they are set; unset, they have REST's default.
OPTIONAL = ("temperature", "max_tokens", "logprobs", "seed", "truncate_prompt_tokens")
# Here 0 is not a possible value: it means unset.
NOT_ZERO = ("top_p", "repetition_penalty")
PLAIN = (
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
)
# The form of an answer, by REST's name in `structured_outputs`.
FORMS = {
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
    "json_object": "json_object",
    "choice": "choice",
}
REFUSED = {
    "kv_transfer_params": "KV cache transfer between servers",
    "kv_transfer_params_json": "KV cache transfer between servers",
    "mm_inputs": "media",
    "media_refs": "media",
}


def checked_request(request: vllm.GenerateRequest, facts: pb.EngineFacts | None) -> GatewayRequest:
    """Returns the request with all its fields checked as those of HTTP. `facts` None: the engine's are not known yet.

    Raises TandemError (INVALID_ARGUMENT) with the name of the wrong, or not supported, field.
    """
    _refuse_what_is_not_there(request)
    if facts is not None:
        truncated = request.sampling_params.HasField("truncate_prompt_tokens")
        check_num_ids(len(request.tokenized.input_ids), facts.max_model_len, truncated=truncated)
        _check_counts(request.sampling_params, facts.limits)
    return validate(GatewayRequest, _fields(request), facts)


def _check_counts(params: vllm.SamplingParams, limits: pb.RequestLimits) -> None:
    """Refuses lists above their limits before they are converted: two million biases would take a second."""
    check_count("stop_token_ids", len(params.stop_token_ids), limits.max_stop_token_ids)
    check_count("logit_bias", len(params.logit_bias), limits.max_logit_bias)
    check_count("stop", len(params.stop), MAX_STOP_STRINGS)
    check_count("structured_outputs.choice", len(params.choice.choices), MAX_CHOICE_TEXTS)


def submit_of(request: GatewayRequest, context: SubmitContext) -> text_pb2.TextSubmit:
    """Returns the request as a submit. Raises TandemError as `base_submit`."""
    submit = base_submit(request, context)
    form = request.structured_output(None)
    if form is not None:
        name = form.WhichOneof("form")
        form.field = "choice" if name == "choices" else name or ""
    add_form(submit.output, form)
    if isinstance(request.prompt, str):
        submit.text.text = request.prompt
        submit.text.add_special_tokens = True
    else:
        submit.prompt_token_ids = pack_u32(request.prompt)
    return submit


def field_of(request: Any, param: str) -> str:
    """Returns the path of a field in a request of this protocol, from its name in an error, which is that of REST."""
    name = param.partition(".")[0]
    if name == "structured_outputs":
        name = param = request.sampling_params.WhichOneof("constraint") or param
    if name in request.DESCRIPTOR.fields_by_name:
        return param
    if name in vllm.SamplingParams.DESCRIPTOR.fields_by_name:
        return f"sampling_params.{param}"
    if name == "prompt":
        return {"text": "text", "tokenized": "tokenized.input_ids"}.get(request.WhichOneof("input"), "input")
    return param


def _fields(request: vllm.GenerateRequest) -> dict[str, Any]:
    """Returns the fields that are set, by GatewayRequest's names."""
    params = request.sampling_params
    fields: dict[str, Any] = {name: getattr(params, name) for name in PLAIN}
    fields |= {name: getattr(params, name) for name in OPTIONAL if params.HasField(name)}
    fields |= {name: getattr(params, name) for name in NOT_ZERO if getattr(params, name) != 0}
    fields |= {
        "stream": request.stream,
        "n": params.n or 1,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "logit_bias": {str(token_id): bias for token_id, bias in params.logit_bias.items()},
    }
    constraint = params.WhichOneof("constraint")
    if constraint is not None:
        value = list(params.choice.choices) if constraint == "choice" else getattr(params, constraint)
        fields["structured_outputs"] = {FORMS[constraint]: value}
    if request.request_id:
        fields["request_id"] = request.request_id
    kind = request.WhichOneof("input")
    if kind is not None:
        fields["prompt"] = request.text if kind == "text" else list(request.tokenized.input_ids)
    return fields


def _refuse_what_is_not_there(request: vllm.GenerateRequest) -> None:
    params = request.sampling_params
    if params.HasField("prompt_logprobs"):
        raise _not_supported("prompt_logprobs", "logprobs of the prompt")
    for name, what in REFUSED.items():
        if request.HasField(name):
            raise _not_supported(name, what)
    if request.extra_mm_inputs:
        raise _not_supported("extra_mm_inputs", "media")
    if request.HasField("data_parallel_rank") and request.data_parallel_rank != 0:
        rank = request.data_parallel_rank
        raise invalid(f"data_parallel_rank is {rank}, but the only rank here is 0", "data_parallel_rank")


def _not_supported(name: str, what: str) -> Exception:
    return invalid(f"{name} is not supported by this server: {what}", name)
