"""The tokenizer process: its health follows its engines."""

import asyncio
import types
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.callee import Callee
from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import make_hello
from services.rpc.transport import RpcServer, open_channel
from services.tokenizer import service
from services.tokenizer.engine_client import EngineClient
from tests.tokenizer.parts import FakeEngineLink, answer_formats, output_resolver

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class RenewedCallee(Callee):
    def __init__(self) -> None:
        super().__init__()
        self.renewed = asyncio.Event()

    def renew_streams(self) -> None:
        self.renewed.set()


async def test_it_is_ready_while_an_engine_is_connected(socket_dir: Path) -> None:
    address = f"unix:{socket_dir}/tokenizer.sock"
    server = RpcServer(address, service=service.SERVICE)
    await server.start()
    engines, link = EngineClient((), make_hello("tokenizer")), FakeEngineLink()
    servicer: Any = types.SimpleNamespace(callee=RenewedCallee())
    resolver = output_resolver(engines, answer_formats("hermes", "qwen3"))
    reporting = asyncio.create_task(service._report_ready(server, servicer, engines, resolver))
    try:
        async with open_channel(address) as channel, asyncio.timeout(20):
            for name in ("", "tandem.v1.TextService"):
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
                assert (await watch.read()).status == NOT_SERVING
                engines.link_up(link)  # type: ignore[arg-type]
                assert (await watch.read()).status == SERVING
                engines.link_down(link, died=True)  # type: ignore[arg-type]
                assert (await watch.read()).status == NOT_SERVING
                watch.cancel()
            assert not servicer.callee.renewed.is_set(), "the facts are the same"
            link.peer = pb.Hello(epoch=6, engine=pb.EngineFacts(numerics_id="other"))
            engines.link_up(link)  # type: ignore[arg-type]
            await servicer.callee.renewed.wait()
    finally:
        reporting.cancel()
        await server.stop()
