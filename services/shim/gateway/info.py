"""What gateways ask of model and server, once per server: vLLM's GetModelInfo and GetServerInfo."""

import json

from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.generated import common_pb2 as pb
from services.shim.apis.numbers import as_written

SERVER_TYPE = "vllm-grpc"  # what gateways know the protocol's servers by
# What vLLM lists as the model's sampling defaults: gateways fill these into requests that leave them out.
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def model_info(info: pb.ModelInfo, facts: pb.EngineFacts) -> vllm.GetModelInfoResponse:
    """`info`: a tokenizer's; `facts`: the engine's, from the hello."""
    path = facts.model or facts.served_model_names[0]
    return vllm.GetModelInfoResponse(
        model_path=path,
        is_generation=True,
        max_context_length=facts.max_model_len,
        vocab_size=facts.vocab_size,
        served_model_name=facts.served_model_names[0],
        tokenizer_path=path,
        model_type=info.model_type,
        architectures=info.architectures,
        eos_token_ids=facts.eos_token_ids,
        pad_token_id=info.pad_token_id,
        bos_token_id=info.bos_token_id,
        max_req_input_len=facts.max_model_len - 1,  # one token of an answer
        default_sampling_params_json=sampling_defaults(facts.default_sampling),
    )


def sampling_defaults(defaults: pb.SamplingParams) -> str:
    """Returns the defaults as a JSON object of those that are set."""
    values = {name: getattr(defaults, name) for name in SAMPLING_DEFAULTS if defaults.HasField(name)}
    written = {name: as_written(value) if isinstance(value, float) else value for name, value in values.items()}
    return json.dumps(written, separators=(",", ":"))


def server_info(
    facts: pb.EngineFacts, num_requests: int, last_request: float, uptime: float
) -> vllm.GetServerInfoResponse:
    """`last_request`: when the last one arrived, in seconds since 1970; 0: none. `uptime` is in seconds."""
    return vllm.GetServerInfoResponse(
        active_requests=num_requests,
        is_paused=False,
        last_receive_timestamp=last_request,
        uptime_seconds=uptime,
        server_type=SERVER_TYPE,
        data_parallel_size=1,
        block_size=facts.block_size,
        max_num_seqs=facts.limits.max_num_seqs,
    )
