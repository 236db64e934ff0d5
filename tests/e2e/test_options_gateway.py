"""The options of the gateway API, seen from its clients."""

import os
import signal
from collections.abc import Iterator

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.machine import loopback
from tests.e2e.gateway_client import GatewayClient, address_of, refusal
from tests.e2e.harness import ALL_READY, Server, pid_of, run_tandem, wait_for

CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--dtype=float32", "--grpc-port=0") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


@pytest.fixture(scope="module")
def changed() -> Iterator[Server]:
    host = ["--grpc-host=127.0.0.2"] if loopback() == "127.0.0.1" else []  # one IPv6 loopback address only
    flags = ("--api-key=secret", "--grpc-no-key", "--no-grpc-reflection")
    with Server("--dtype=float32", "--grpc-port=0", *host, *flags) as running:
        yield running


def test_grpc_port(server: Server) -> None:
    host, _, port = address_of(server).rpartition(":")
    assert host == loopback() and int(port) > 0
    wait_for(lambda: server.get("/health").status_code == 200, "ready", 30)
    shim = pid_of(server, "shim")
    os.kill(shim, signal.SIGKILL)

    def again() -> bool:
        with GatewayClient(server) as gateway:
            try:
                return gateway.healthy()
            except grpc.RpcError:
                return False

    wait_for(lambda: server.log.count(f"grpc://{host}:{port}") == 2 and again(), "it has the same port again", 30)


@pytest.mark.skipif(loopback() != "127.0.0.1", reason="one IPv6 loopback address only")
def test_grpc_host(changed: Server) -> None:
    assert address_of(changed).startswith("127.0.0.2:") and "http://127.0.0.1:" in changed.url
    with GatewayClient(changed) as gateway:
        assert gateway.healthy()


def test_a_key_is_needed_and_the_limit_is_that_of_http() -> None:
    bearer = (("authorization", "Bearer secret"),)
    arguments = ("--dtype=float32", "--grpc-port=0", "--api-key=secret", "--max-concurrent-requests=1")
    with Server(*arguments) as server, GatewayClient(server) as gateway:
        stub = gateway.stub
        assert refusal(lambda: stub.HealthCheck(vllm.HealthCheckRequest())).code() == CODE.UNAUTHENTICATED
        assert refusal(gateway.start("a", stream=True)).code() == CODE.UNAUTHENTICATED
        assert stub.HealthCheck(vllm.HealthCheckRequest(), metadata=bearer).healthy
        request = vllm.GenerateRequest(
            text="a", stream=True, sampling_params=vllm.SamplingParams(max_tokens=1000, ignore_eos=True)
        )
        call = stub.Generate(request, metadata=bearer)
        assert next(call).chunk.token_ids
        headers = {"Authorization": "Bearer secret"}
        assert server.post("/v1/completions", {"prompt": "a"}, headers=headers).status_code == 429
        error = refusal(stub.Generate(request, metadata=bearer))
        assert error.code() == CODE.RESOURCE_EXHAUSTED and "max_concurrent_requests" in error.details()
        assert b"RetryInfo" in dict(error.trailing_metadata())["grpc-status-details-bin"]
        call.cancel()
        wait_for(lambda: server.post("/v1/completions", {"prompt": "a"}, headers=headers).status_code == 200, "free")


def test_grpc_no_key(changed: Server) -> None:
    assert changed.post("/v1/completions", {"prompt": "a"}).status_code == 401
    with GatewayClient(changed) as gateway:
        assert gateway.ask("a", stream=True, max_tokens=3, ignore_eos=True)["completion_tokens"] == 3
    ended = run_tandem("serve", "--port=0", "--grpc-port=0", "--grpc-host=0.0.0.0", "--grpc-no-key")
    message = "--grpc-no-key is refused on 0.0.0.0, all interfaces: name one address with --grpc-host"
    assert (ended.returncode, ended.stderr) == (1, f"tandem serve: error: {message}\n")


def services_of(address: str) -> set[str]:
    """Returns the names that reflection lists. Raises RpcError if it is off."""
    with grpc.insecure_channel(address) as channel:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    return {one.name for one in answer.list_services_response.service}


def test_grpc_reflection(server: Server, changed: Server) -> None:
    """For each server of gRPC: those of engine, tokenizer and gateway."""
    common = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    for address, service in (
        (f"unix:{server.runtime_dir}/engine.sock", "tandem.v1.EngineService"),
        (f"unix:{server.runtime_dir}/tokenizer-0.sock", "tandem.v1.TextService"),
        (address_of(server), "vllm.grpc.engine.VllmEngine"),
    ):
        assert services_of(address) == {service, *common}
    paths = [f"unix:{changed.runtime_dir}/{name}.sock" for name in ("engine", "tokenizer-0")]
    for address in (*paths, address_of(changed)):
        assert refusal(lambda address=address: services_of(address)).code() == CODE.UNIMPLEMENTED
