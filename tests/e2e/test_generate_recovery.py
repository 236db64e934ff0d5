"""Programs' calls go on when a process behind the one that they call is killed."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.transport import open_channel
from tests.e2e.harness import ALL_READY, Server, children_of, pid_of, role_of, wait_for
from tests.e2e.programs import answer_of, details_of, error_of, fold, responses, run

STREAMS = 32
ANSWER = 1200  # tokens: long enough to find every answer running, twice
POISON = 900


def request_of(number: int) -> text_pb2.GenerateTextRequest:
    """Returns one of different requests with long answers."""
    return text_pb2.GenerateTextRequest(
        text=text_pb2.TextInput(text=f"Which way, number {number}?"),
        stream=number % 4 > 0,
        n=1 + (number % 8 == 7),
        seed=number,
        sampling=pb.SamplingParams(
            temperature=number % 3 * 0.5,
            max_tokens=ANSWER,
            ignore_eos=True,
            logprobs=1 if number % 5 == 0 else None,
            frequency_penalty=0.5 * (number % 2),
        ),
    )


async def answers(text: Any, engine: Any) -> list[Any]:
    """Returns the folded answers of all requests, sent at once."""
    calls = [responses(text, engine, request_of(number)) for number in range(STREAMS)]
    return [fold(found) for found in await asyncio.gather(*calls)]


def seen(answer: Any) -> Any:
    """Returns what must not change: what the prefix cache held may."""
    answer["usage"].ClearField("cached_tokens")
    answer["started"].ClearField("cached_tokens")
    return answer


@pytest.mark.long
def test_streams_of_programs_survive_engine_and_worker() -> None:
    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = run(server, answers)

        async def killed(text: Any, engine: Any) -> list[Any]:
            task = asyncio.create_task(answers(text, engine))
            for role in ("engine", "worker", "engine"):
                await asyncio.to_thread(wait_for, lambda: all_run(server), "all run", 60)
                os.kill(pid_of(server, role), signal.SIGKILL)
            assert not task.done(), "a process died too late"
            return await task

        assert [seen(one) for one in run(server, killed)] == [seen(one) for one in expected]
        wait_for(lambda: server.stats().num_running + server.stats().num_waiting == 0, "nothing is left")


def test_a_request_keeps_its_group_when_the_engine_is_restarted() -> None:
    """The new engine's cache has the prompt for that group alone."""
    ids = [9, 8, 7, 6, 5] * 16

    def cached(server: Server, group: str) -> int:
        request = engine_pb2.GenerateTokensRequest(
            prompt_token_ids=ids, cache_group=group, sampling=pb.SamplingParams(max_tokens=1)
        )
        return int(answer_of(server, request)["usage"].cached_tokens)

    request = text_pb2.GenerateTextRequest(
        token_ids=text_pb2.TokenIds(ids=ids),
        cache_group="group",
        sampling=pb.SamplingParams(max_tokens=800, ignore_eos=True),
        stream=True,
    )
    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")

        async def killed(text: Any, engine: Any) -> Any:
            found = []
            async for response in text.Generate(request):
                if not found:
                    os.kill(pid_of(server, "engine"), signal.SIGKILL)
                found.append(response)
            return fold(found)

        keys = _root_keys(server)
        assert keys.keys() == {"engine"}
        assert len(run(server, killed)["choices"][0]["token_ids"]) == 800
        assert _root_keys(server) == keys, "the launcher gives it to each engine, and to no other process"
        assert [cached(server, group) for group in ("other", "", "group")] == [0, 0, 64]


def _root_keys(server: Server) -> dict[str, str]:
    """Returns the key of cache roots in the environment of each process of the server that has one, by role."""
    found = {}
    for pid in children_of(server.process.pid):
        role = role_of(pid) or "engine"  # a spare, which may become one
        text = Path(f"/proc/{pid}/environ").read_text()
        if key := re.search(r"\bTANDEM_CACHE_ROOT_KEY=(\w+)", text):
            found[role] = key.group(1)
    return found


def all_run(server: Server) -> bool:
    try:
        stats = server.stats()
    except grpc.aio.AioRpcError:  # the engine is not there yet
        return False
    return bool(stats.num_running > STREAMS and stats.num_output_tokens > 100)


@pytest.mark.long
def test_a_request_that_kills_the_worker_ends_with_internal() -> None:
    env = {"PYTHONPATH": str(Path(__file__).with_name("faults")), "TANDEM_TEST_POISON": f"worker:{POISON}"}
    with Server(env=env) as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        for request in (
            text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds(ids=[POISON] * 5)),
            engine_pb2.GenerateTokensRequest(prompt_token_ids=[POISON] * 5),
        ):
            error = error_of(server, request)
            assert error.code() == grpc.StatusCode.INTERNAL
            assert error.details() == "the worker died while it ran this request alone"
            assert details_of(error) == {}


def test_a_call_that_comes_before_the_engine_is_told_to_come_again() -> None:
    """The status is not UNAVAILABLE, which means that the called process itself is gone."""
    with Server("--resume-wait=0") as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        os.kill(pid_of(server, "worker"), signal.SIGSTOP)
        os.kill(pid_of(server, "engine"), signal.SIGKILL)
        request = text_pb2.GenerateTextRequest(text=text_pb2.TextInput(text="a"))
        wait_for(lambda: _is_refused(server, request), "the tokenizer has lost its engine")
        assert _health(server) == health_pb2.HealthCheckResponse.NOT_SERVING
        os.kill(pid_of(server, "worker"), signal.SIGCONT)
        wait_for(lambda: _health(server) == health_pb2.HealthCheckResponse.SERVING, "the tokenizer has an engine again")
        assert len(answer_of(server, request)["choices"]) == 1


def _health(server: Server) -> int:
    async def body() -> int:
        async with open_channel(f"unix:{server.runtime_dir}/tokenizer-0.sock") as channel:
            request = health_pb2.HealthCheckRequest(service="tandem.v1.TextService")
            return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)

    return asyncio.run(body())


def _is_refused(server: Server, request: Any) -> bool:
    async def body(text: Any, engine: Any) -> bool:
        call = text.Generate(request, timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            while await call.read() is not grpc.aio.EOF:
                pass
        if error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        retry: Any = details_of(error.value)["RetryInfo"]
        return bool(retry.retry_delay.seconds >= 1)

    return run(server, body)
