"""vLLM's engine service: each RPC as work of the shim. How requests and answers look is in request.py and answer.py.

Where HTTP answers a request with an error, an RPC ends with a status (services/rpc/status.py).
"""

import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2 as smg

from services.rpc.errors import TandemError
from services.rpc.pace import Pace
from services.rpc.program_request import traceparent_of
from services.rpc.status import abort
from services.shim.apis.submit import SubmitContext
from services.shim.gateway.answer import streamed, whole
from services.shim.gateway.info import model_info, server_info
from services.shim.gateway.key_check import caller
from services.shim.gateway.loads import Loads
from services.shim.gateway.open_calls import OpenCalls
from services.shim.gateway.request import checked_request, field_of, submit_of
from services.shim.gateway.service_name import ENGINE_SERVICE
from services.shim.generation import Generation
from services.shim.generations import Generations
from services.shim.health import ShimHealth
from services.shim.in_progress import Hold, InProgress
from services.shim.logprob_entries import check_logprob_entries
from services.shim.parsing import check_submit_size
from services.telemetry.logs import fields

log = logging.getLogger(__name__)
OPERATION = "text_completion"  # gen_ai.operation.name: the prompt is rendered already
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Any, Context], Awaitable[Any]]


def add_servicer(
    server: grpc.aio.Server,
    generations: Generations,
    in_progress: InProgress,
    health: ShimHealth,
    max_logprob_entries: int,
) -> None:
    """Adds vLLM's engine service to a server that has not started."""
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(
        VllmEngine(generations, in_progress, health, max_logprob_entries), server
    )


def with_status(handler: Handler) -> Handler:
    """Returns the handler of an RPC that ends with the status of an error that `handler` raises."""

    @functools.wraps(handler)
    async def answer(self: Any, request: Any, context: Context) -> Any:
        try:
            return await handler(self, request, context)
        except TandemError as error:
            # Without the message, which may quote the request.
            path = f"{ENGINE_SERVICE}/{handler.__name__}"
            log.info("request refused", extra=fields(path=path, code=error.code, param=error.param))
            await abort(context, error, field=field_of(request, error.param))
        except Exception:
            log.exception("%s failed", handler.__name__)
            await abort(context, TandemError("INTERNAL", "internal server error; the server's log has the details"))

    return answer


def not_there(name: str) -> Handler:
    """Returns the handler of an RPC that this server does not have."""

    async def refuse(self: Any, request: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this server")

    return refuse


class VllmEngine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """One object per process. A call's cancellation, by its gateway or its deadline, cancels its handler."""

    def __init__(
        self, generations: Generations, in_progress: InProgress, health: ShimHealth, max_logprob_entries: int
    ) -> None:
        self._generations = generations
        self._client = generations.client
        self._in_progress = in_progress
        self._health = health
        self._max_logprob_entries = max_logprob_entries
        self._open_calls = OpenCalls()
        self._loads = Loads()
        self._pace = Pace()
        self._began = time.monotonic()
        self._last_request = 0.0  # seconds since 1970

    @with_status
    async def Generate(self, request: vllm.GenerateRequest, context: Context) -> None:
        self._last_request = time.time()
        self._in_progress.check()
        with self._in_progress.request() as hold:
            hold(request.ByteSize())
            generation = self._start(request, traceparent_of(context), hold)
            try:
                with self._open_calls.add(request.request_id, generation):
                    responses = streamed(generation, self._pace.pause) if request.stream else whole(generation)
                    async for response in responses:
                        await context.write(response)
            finally:
                generation.close()

    def _start(self, request: vllm.GenerateRequest, traceparent: str, hold: Hold) -> Generation:
        """Checks the request and submits it. Raises TandemError as HTTP's endpoints do."""
        with self._generations.trace_refusals(OPERATION, traceparent):
            checked = checked_request(request, self._client.facts())
            model = self._generations.served_name(None)
            request_id = checked.request_id or uuid.uuid4().hex
            facts = self._generations.facts()
            submit = submit_of(checked, SubmitContext(facts, cache_group=caller.get().group))
            check_logprob_entries(checked, [submit], facts, self._max_logprob_entries)
            check_submit_size(submit)
        key_name = caller.get().name
        return self._generations.start(
            OPERATION, request_id, model, traceparent, [submit], key_name=key_name, hold=hold
        )

    @with_status
    async def Abort(self, request: vllm.AbortRequest, context: Context) -> vllm.AbortResponse:
        self._open_calls.abort(request.request_ids)
        return vllm.AbortResponse()

    @with_status
    async def HealthCheck(self, request: vllm.HealthCheckRequest, context: Context) -> vllm.HealthCheckResponse:
        if self._health.is_healthy():
            return vllm.HealthCheckResponse(healthy=True, message="healthy")
        return vllm.HealthCheckResponse(healthy=False, message="no tokenizer is connected, or the server is stopping")

    @with_status
    async def GetModelInfo(self, request: vllm.GetModelInfoRequest, context: Context) -> vllm.GetModelInfoResponse:
        facts = self._generations.facts()
        return model_info(await self._client.model_info(), facts)

    @with_status
    async def GetServerInfo(self, request: vllm.GetServerInfoRequest, context: Context) -> vllm.GetServerInfoResponse:
        uptime = time.monotonic() - self._began
        num_requests = self._in_progress.num_requests
        return server_info(self._generations.facts(), num_requests, self._last_request, uptime)

    @with_status
    async def GetLoads(self, request: vllm.GetLoadsRequest, context: Context) -> vllm.GetLoadsResponse:
        facts = self._generations.facts()
        return self._loads.response(request, await self._client.engine_stats(), facts)

    @with_status
    async def GetTokenizer(self, request: smg.GetTokenizerRequest, context: Context) -> None:
        async for piece in self._client.tokenizer_pieces():
            await context.write(smg.GetTokenizerChunk(data=piece.data, sha256=piece.sha256))

    @with_status
    async def FlushCache(self, request: smg.FlushCacheRequest, context: Context) -> smg.FlushCacheResponse:
        """Empties the prefix cache of every engine at once: requests that run keep their blocks."""
        await self._client.reset_prefix_cache()
        return smg.FlushCacheResponse(success=True, message="the prefix cache is empty")

    Embed = not_there("Embed")
    SubscribeKvEvents = not_there("SubscribeKvEvents")
    StartProfile = not_there("StartProfile")
    StopProfile = not_there("StopProfile")
