"""What gateways read of model and server, and the sampling defaults that they fill into requests."""

import json

from services.rpc.generated import common_pb2 as pb
from services.shim.gateway.info import model_info, sampling_defaults, server_info
from tests.shim.harness import FACTS


def test_the_model() -> None:
    known = pb.ModelInfo(model_type="qwen3", architectures=["Qwen3ForCausalLM"], bos_token_id=4, pad_token_id=5)
    found = model_info(known, FACTS)
    assert (found.served_model_name, found.model_path, found.tokenizer_path) == ("fake", "/models/fake", "/models/fake")
    assert (found.max_context_length, found.max_req_input_len, found.vocab_size) == (64, 63, 50)
    assert (list(found.eos_token_ids), found.bos_token_id, found.pad_token_id) == ([0], 4, 5)
    assert (found.model_type, list(found.architectures)) == ("qwen3", ["Qwen3ForCausalLM"])
    assert found.is_generation and not found.supports_vision


def test_sampling_defaults_are_written_as_in_rest() -> None:
    defaults = pb.SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.0, max_tokens=10)
    assert json.loads(sampling_defaults(defaults)) == {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.0}
    assert sampling_defaults(pb.SamplingParams()) == "{}"


def test_the_server() -> None:
    found = server_info(FACTS, 3, 1000.5, 60.0)
    assert (found.active_requests, found.last_receive_timestamp, found.uptime_seconds) == (3, 1000.5, 60.0)
    assert (found.server_type, found.data_parallel_size, found.is_paused) == ("vllm-grpc", 1, False)
    assert (found.block_size, found.max_num_seqs) == (FACTS.block_size, 8)
