"""The gateway's server: the key, health, reflection, the address."""

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as smg
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from services.errors import Fatal
from services.shim.gateway.server import GatewayServer
from services.shim.gateway.service_name import ENGINE_SERVICE
from services.shim.health import ShimHealth
from tests.addresses import HOST, open_server
from tests.shim.gateway.harness import gateway, refusal
from tests.shim.harness import Shim

KEY = "a key"
CODE = grpc.StatusCode
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def metadata(value: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", value),) if value is not None else ()


async def list_services(channel: grpc.aio.Channel, value: str | None = None) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(metadata=metadata(value))
    with contextlib.suppress(asyncio.InvalidStateError):  # refused before the request was written: read() says so
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await call.done_writing()
    answer = await call.read()
    if answer is grpc.aio.EOF:
        raise AssertionError(await call.code())
    return {one.name for one in answer.list_services_response.service}


async def check_health(channel: grpc.aio.Channel, service: str = "", value: str | None = None) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), metadata=metadata(value))
    return int(answer.status)


@pytest.mark.parametrize("given", [None, "", KEY, "Bearer", "Bearer other", f"Basic {KEY}"])
async def test_every_rpc_needs_the_key(given: str | None) -> None:
    async with gateway(Shim(connected=True, api_key=(KEY,)), reflection=True) as channel:
        stub, more = VllmEngineStub(channel), {"metadata": metadata(given)}
        calls: list[Any] = [
            stub.HealthCheck(vllm.HealthCheckRequest(), **more),
            stub.Generate(vllm.GenerateRequest(text="Hi"), **more).read(),
            stub.Abort(vllm.AbortRequest(), **more),
            check_health(channel, value=given),
            list_services(channel, given),
        ]
        for call in calls:
            error = await refusal(call)
            assert (error.code(), error.details()) == (CODE.UNAUTHENTICATED, "the API key is missing or wrong")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_right_key_opens(scheme: str) -> None:
    async with gateway(Shim(connected=True, api_key=(KEY,)), reflection=True) as channel:
        value = f"{scheme} {KEY}"
        call = VllmEngineStub(channel).HealthCheck(vllm.HealthCheckRequest(), metadata=metadata(value))
        assert (await call).healthy
        assert await check_health(channel, value=value) == SERVING
        assert ENGINE_SERVICE in await list_services(channel, value)


async def test_what_administers_needs_the_admin_key() -> None:
    async with gateway(Shim(connected=True, api_key=(KEY,), admin_api_key="admin")) as channel:
        stub = VllmEngineStub(channel)
        error = await refusal(stub.FlushCache(smg.FlushCacheRequest(), metadata=metadata(f"Bearer {KEY}")))
        assert (error.code(), error.details()) == (CODE.PERMISSION_DENIED, "this needs the key of --admin-api-key")
        assert (await stub.FlushCache(smg.FlushCacheRequest(), metadata=metadata("Bearer admin"))).success
        assert (await stub.HealthCheck(vllm.HealthCheckRequest(), metadata=metadata(f"Bearer {KEY}"))).healthy


async def test_each_call_has_the_caller_of_its_own_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Calls share one connection and overlap: a caller must not leak into the next call."""
    caplog.set_level(logging.INFO)
    names = ["alice", "bob", "carol"]
    lines = (f"{name}, {name}-team, {hashlib.sha256(name.encode()).hexdigest()}\n" for name in names)
    (tmp_path / "keys").write_text("".join(lines))
    shim = Shim(connected=True, api_key=(KEY,), api_key_file=str(tmp_path / "keys"))
    async with gateway(shim) as channel:
        stub = VllmEngineStub(channel)
        keys = [*names, KEY, *reversed(names)]
        calls = [
            stub.Generate(vllm.GenerateRequest(text="Hi", request_id=str(at)), metadata=metadata(f"Bearer {key}"))
            for at, key in enumerate(keys)
        ]
        reads = [asyncio.create_task(call.read()) for call in calls]
        for _ in keys:
            submit = (await shim.sent()).submit
            key = keys[int(submit.request_id)]
            assert submit.cache_group == (f"{key}-team" if key in names else "")
            shim.end(submit.choices[0].handle)
        await asyncio.gather(*reads)
    found = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request finished"]
    expected = {str(at): key if key in names else None for at, key in enumerate(keys)}
    assert {one["request_id"]: one.get("key") for one in found} == expected


async def test_reflection_lists_the_services() -> None:
    async with gateway(Shim(), reflection=True) as channel:
        assert await list_services(channel) == {
            ENGINE_SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
    async with gateway(Shim()) as channel:
        assert (await refusal(list_services(channel))).code() == CODE.UNIMPLEMENTED


async def test_health_of_server_and_service() -> None:
    shim = Shim()
    async with gateway(shim) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=ENGINE_SERVICE))
        for status in (NOT_SERVING, SERVING):
            if status == SERVING:
                shim.client.link_up(shim.link)
            assert [await check_health(channel, name) for name in ("", ENGINE_SERVICE)] == [status, status]
            assert (await asyncio.wait_for(watch.read(), 10)).status == status
        assert (await refusal(check_health(channel, "other"))).code() == CODE.NOT_FOUND
        unknown = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="other"))
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()
        unknown.cancel()


async def test_a_server_whose_tokenizers_restart_is_healthy_for_a_while() -> None:
    shim = Shim(connected=True, resume_wait=0.5)
    async with gateway(shim) as channel:

        async def healthy() -> list[bool]:
            found = (await VllmEngineStub(channel).HealthCheck(vllm.HealthCheckRequest())).healthy
            return [bool(found), await check_health(channel) == SERVING]

        assert await healthy() == [True, True]
        shim.client.link_down(shim.link, died=True)
        assert (await healthy())[0], "requests wait for the next tokenizer"
        async with asyncio.timeout(10):
            while await healthy() != [False, False]:
                pass
        shim.client.link_up(shim.link)
        assert await healthy() == [True, True]


async def test_an_address_that_cannot_be_bound_is_fatal() -> None:
    shim = Shim()
    with open_server() as taken:
        server = GatewayServer(ShimHealth(shim.client, shim.in_progress), None, 8, reflection=False)
        with pytest.raises(Fatal, match=str(taken.getsockname()[1])):
            await server.start(HOST, taken.getsockname()[1])
        await server.stop(0)


async def test_a_large_request_is_refused_unread_without_the_key_and_by_its_size_with_it() -> None:
    large = vllm.GenerateRequest(text="x" * (17 * 1024 * 1024))
    async with gateway(Shim(connected=True, api_key=(KEY,))) as channel:
        stub = VllmEngineStub(channel)
        assert (await refusal(stub.Generate(large).read())).code() == CODE.UNAUTHENTICATED
        call = stub.Generate(large, metadata=metadata(f"Bearer {KEY}"))
        assert (await refusal(call.read())).code() == CODE.RESOURCE_EXHAUSTED
