"""The shim process: when it is ready, what it serves before, and how its streams end when it stops."""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from services.errors import Fatal
from services.machine.listen import listen
from services.options.declarations import ShimOptions
from services.process.progress_page import Progress
from services.shim import service
from tests.addresses import open_server
from tests.rpc.pipeline import Pipeline

DEADLINE = 20.0


@pytest.fixture(autouse=True)
def uvicorn_log() -> Iterator[None]:
    """`serve` disables this log for the rest of the process, which here goes on."""
    log = logging.getLogger("uvicorn.error")
    yield
    log.disabled = False


@contextlib.asynccontextmanager
async def shim(tokenizer: str, **options: Any) -> AsyncIterator[tuple[httpx.AsyncClient, "asyncio.Task[None]"]]:
    """A client of a running shim, and the shim's task."""
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "listen", lambda host, port: listener)
        serving = asyncio.create_task(service.serve(ShimOptions(tokenizer=(tokenizer,), **options), Progress()))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE) as http:
            try:
                yield http, serving
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                listener.close()


async def until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await http.get("/health")).status_code != 200:
            pass


async def until_unhealthy(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await http.get("/health")).status_code != 503:
            pass


async def test_it_serves_before_a_tokenizer_is_connected(socket_dir: Path) -> None:
    async with shim(f"unix:{socket_dir}/none.sock") as (http, serving):
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/version")).status_code == 200
        assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 503
        assert not serving.done()


async def test_it_is_ready_once_a_tokenizer_is_connected(socket_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Pipeline(socket_dir).running() as pipeline, shim(pipeline.tokenizer_address) as (http, _):
        await until_ready(http)
        (ready,) = (line.getMessage() for line in caplog.records if "ready on http" in line.getMessage())
        assert ready == (
            f"ready on {str(http.base_url).rstrip('/')} serving fake;"
            " KV cache of 2048 tokens, 8.0 requests of maximum length (256 tokens)"
        )
        metrics = (await http.get("/metrics")).text
        assert 'tandem:process_up{process="shim"} 1.0' in metrics
        assert 'vllm:generation_tokens_total{engine="0",model_name="fake",process="shim"} 0.0' in metrics
        answer = await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3


BODY = {"prompt": "a", "max_tokens": 250, "ignore_eos": True, "stream": True}


async def test_a_stream_ends_by_itself_after_the_shim_was_stopped(socket_dir: Path) -> None:
    """New requests are refused meanwhile, and the shim ends with its last stream."""
    async with Pipeline(socket_dir).running() as pipeline, shim(pipeline.tokenizer_address) as (http, serving):
        await until_ready(http)
        async with http.stream("POST", "/v1/completions", json=BODY) as response:
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            serving.cancel()
            await until_unhealthy(http)
            assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 503
            rest = [line async for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2] and rest[-1] == "data: [DONE]"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving, DEADLINE)


async def test_a_shim_without_requests_ends_at_once(socket_dir: Path) -> None:
    async with (
        Pipeline(socket_dir).running() as pipeline,
        shim(pipeline.tokenizer_address, shutdown_timeout=3600.0) as (http, serving),
    ):
        await until_ready(http)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving, DEADLINE)


@pytest.mark.parametrize(("seconds", "signals"), [(0.0, 1), (0.3, 1), (3600.0, 2)])
async def test_a_stream_ends_with_an_error_when_the_shims_time_is_over(
    socket_dir: Path, seconds: float, signals: int
) -> None:
    """At once, after the timeout, or at the second signal."""
    async with (
        Pipeline(socket_dir).running() as pipeline,
        shim(pipeline.tokenizer_address, shutdown_timeout=seconds) as (http, serving),
    ):
        await until_ready(http)
        async with http.stream("POST", "/v1/completions", json=BODY) as response:
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            serving.cancel()
            if signals == 2:
                await until_unhealthy(http)
                serving.cancel()
            rest = [line async for line in lines if line]
        assert '"message":"the server is stopping"' in rest[-1] and "data: [DONE]" not in rest
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving, DEADLINE)


async def test_a_call_of_a_gateway_ends_with_an_error_when_the_shim_stops(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        Pipeline(socket_dir).running() as pipeline,
        shim(pipeline.tokenizer_address, grpc_port=0, shutdown_timeout=0.0) as (http, task),
    ):
        await until_ready(http)
        address = re.search(r"engine protocol on grpc://(\S+)", caplog.text)
        assert address is not None
        async with grpc.aio.insecure_channel(address.group(1)) as channel:
            sampling = vllm.SamplingParams(max_tokens=250, ignore_eos=True)
            call = VllmEngineStub(channel).Generate(
                vllm.GenerateRequest(text="a", stream=True, sampling_params=sampling)
            )
            assert (await call.read()).chunk.token_ids
            task.cancel()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
        assert caught.value.details() == "the server is stopping"
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, "gateways try again elsewhere"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, DEADLINE)


async def test_a_gateway_port_in_use_is_fatal(socket_dir: Path) -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        async with shim(f"unix:{socket_dir}/none.sock", grpc_port=port) as (_, serving):
            with pytest.raises(Fatal, match=f"cannot listen on .*{port}"):
                await asyncio.wait_for(serving, DEADLINE)


async def test_a_port_in_use_is_fatal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fatal, match=str(port)):
            await service.serve(ShimOptions(host="127.0.0.1", port=port), Progress())
