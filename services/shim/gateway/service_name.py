"""The full name of vLLM's engine service."""

ENGINE_SERVICE = "vllm.grpc.engine.VllmEngine"
