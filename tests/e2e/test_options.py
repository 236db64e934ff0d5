"""Every option of `tandem serve` has an effect that a client can observe, and one test for it: see PROOFS.

Most are in test_options_*.py. Options with independent effects share one server, because a start takes seconds.
"""

from collections.abc import Callable

from services.options.commands import serve_settings
from tests.e2e import (
    test_cpu_kernels,
    test_hangs,
    test_hub,
    test_logs,
    test_options_engine,
    test_options_formats,
    test_options_front,
    test_options_gateway,
    test_options_model,
    test_options_requests,
    test_options_worker,
    test_queue_limits,
    test_traces,
)

# Option -> its test. A new option without a test, or a test of another name, fails below.
PROOFS: dict[str, Callable[..., None]] = {
    "api_key": test_options_front.test_api_key,
    "async_scheduling": test_options_engine.test_async_scheduling,
    "batch_invariant": test_options_worker.test_batch_invariant,
    "cpu_kernels": test_cpu_kernels.test_cpu_kernels,
    "cpu_threads": test_options_worker.test_cpu_threads,
    "block_size": test_options_engine.test_block_size,
    "chat_template": test_options_model.test_chat_template,
    "config": test_options_model.test_config,
    "device": test_options_worker.test_device,
    "dtype": test_options_worker.test_dtype,
    "enable_prefix_caching": test_options_engine.test_enable_prefix_caching,
    "flight_recorder_dir": test_options_engine.test_flight_recorder_dir,
    "generation_config": test_options_engine.test_generation_config,
    "gpu_memory_utilization": test_options_worker.test_gpu_memory_utilization,
    "grpc_host": test_options_gateway.test_grpc_host,
    "grpc_no_key": test_options_gateway.test_grpc_no_key,
    "grpc_port": test_options_gateway.test_grpc_port,
    "grpc_reflection": test_options_gateway.test_grpc_reflection,
    "hf_overrides": test_options_model.test_hf_overrides,
    "host": test_options_front.test_host,
    "kv_cache_memory_bytes": test_options_worker.test_kv_cache_memory_bytes,
    "load_format": test_options_model.test_load_format,
    "log_format": test_logs.test_log_format,
    "log_level": test_logs.test_log_level,
    "long_prefill_token_threshold": test_options_engine.test_long_prefill_token_threshold,
    "max_concurrent_requests": test_queue_limits.test_max_concurrent_requests,
    "max_logprob_entries": test_options_requests.test_max_logprob_entries,
    "max_logprobs": test_options_worker.test_max_logprobs,
    "max_model_len": test_options_engine.test_max_model_len,
    "max_num_batched_tokens": test_options_engine.test_max_num_batched_tokens,
    "max_num_queued_reqs": test_queue_limits.test_max_num_queued_reqs,
    "max_num_queued_tokens": test_queue_limits.test_max_num_queued_tokens,
    "max_num_seqs": test_options_engine.test_max_num_seqs,
    "max_request_body_bytes": test_options_requests.test_max_request_body_bytes,
    "model": test_options_model.test_model,
    "otlp_traces_endpoint": test_traces.test_otlp_traces_endpoint,
    "override_generation_config": test_options_model.test_override_generation_config,
    "port": test_options_front.test_port,
    "quantization": test_options_worker.test_quantization,
    "revision": test_hub.test_revision_picks_the_other_weights,
    "runtime_dir": test_options_front.test_runtime_dir,
    "scheduling_policy": test_options_engine.test_scheduling_policy,
    "seed": test_options_model.test_seed,
    "served_model_name": test_options_engine.test_served_model_name,
    "step_timeout": test_hangs.test_step_timeout,
    "tokenizer_replicas": test_options_engine.test_tokenizer_replicas,
    "default_chat_template_kwargs": test_options_requests.test_default_chat_template_kwargs,
    "enable_auto_tool_choice": test_options_requests.test_enable_auto_tool_choice,
    "enable_force_include_usage": test_options_requests.test_enable_force_include_usage,
    "enable_prompt_tokens_details": test_options_requests.test_enable_prompt_tokens_details,
    "enable_request_id_headers": test_options_requests.test_enable_request_id_headers,
    "exclude_tools_when_tool_choice_none": test_options_requests.test_exclude_tools_when_tool_choice_none,
    "ignore_unknown_fields": test_options_requests.test_ignore_unknown_fields,
    "response_role": test_options_requests.test_response_role,
    "structured_outputs_config": test_options_requests.test_structured_outputs_config,
    "reasoning_parser": test_options_formats.test_reasoning_parser,
    "tool_call_parser": test_options_formats.test_tool_call_parser,
    "tool_parser_plugin": test_options_formats.test_tool_parser_plugin,
    "trust_request_chat_template": test_options_requests.test_trust_request_chat_template,
}


def test_every_option_has_a_test() -> None:
    assert PROOFS.keys() == {*serve_settings(), "config"}
    assert [name for name, proof in PROOFS.items() if not proof.__name__.startswith(f"test_{name}")] == []
