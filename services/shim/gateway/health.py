"""Whether the gateway is healthy, for vLLM's own RPC and for gRPC's standard service."""

from services.shim.generations import Generations

ENGINE_SERVICE = "vllm.grpc.engine.VllmEngine"


def is_healthy(generations: Generations) -> bool:
    """Returns whether requests are served: a tokenizer is connected, or open requests wait for its restart.

    A gateway takes a server out after three failures. Requests that are being resumed must not look like one.
    """
    client = generations.client
    return client.dispatcher.connected or (bool(generations.open) and client.resuming)
