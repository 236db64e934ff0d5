"""Programs that use the packaged client get the same answers while the processes behind it are killed."""

import asyncio
import os
import re
import signal
from typing import Any

import pytest

from services.client import EngineClient, TextClient
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from tests.e2e.harness import ALL_READY, Server, children_of, role_of, wait_for

NUM_STREAMS = 32
SECONDS = 200.0
CHAT = b'[{"role":"user","content":"Which way to K\xc3\xb6ln?"}]'
SAMPLED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 300}
Answers = list[dict[str, Any]]


def text_request(number: int) -> text_pb2.GenerateTextRequest:
    """Returns one of several kinds: chat, text or token ids; two choices, logprobs, penalties, stop strings, whole."""
    kinds: list[dict[str, Any]] = [
        {"chat": text_pb2.ChatInput(messages_json=CHAT, add_generation_prompt=True)},
        {"text": text_pb2.TextInput(text="Which way to Köln?"), "n": 2},
        {"token_ids": text_pb2.TokenIds(ids=range(50, 90)), "output": text_pb2.OutputSpec(stop=["no such text"])},
        {
            "text": text_pb2.TextInput(text="Which way?"),
            "output": text_pb2.OutputSpec(bad_words=["the"], stop=["e", "a"]),
        },
    ]
    samplings: list[dict[str, Any]] = [{}, {"logprobs": 2}, {"presence_penalty": 0.5, "frequency_penalty": 0.5}]
    sampling = pb.SamplingParams(**SAMPLED, **samplings[number % 3])
    kind = kinds[number % 4]
    return text_pb2.GenerateTextRequest(seed=number, stream=number % 8 != 7, sampling=sampling, **kind)


def engine_request(number: int) -> engine_pb2.GenerateTokensRequest:
    sampling = pb.SamplingParams(**SAMPLED, logprobs=number % 3)
    return engine_pb2.GenerateTokensRequest(
        prompt_token_ids=range(50, 70 + number), n=1 + number % 2, seed=number, stream=True, sampling=sampling
    )


class Received:
    """Counts the tokens of all requests."""

    num_tokens = 0


async def answer(client: Any, request: Any, received: Received) -> dict[str, Any]:
    """Returns what must not change: tokens, text, logprobs, ends, usage."""
    found: dict[str, Any] = {}
    async for response in client.generate(request):
        for delta in response.choices:
            choice = found.setdefault(delta.index, {"ids": [], "text": "", "logprobs": []})
            received.num_tokens += len(delta.token_ids)
            choice["ids"] += delta.token_ids
            choice["logprobs"] += [one if isinstance(one, float) else one.SerializeToString() for one in delta.logprobs]
            choice["text"] += "".join(piece.text for piece in getattr(delta, "pieces", ()))
            if delta.finish_reason:
                choice["end"] = (delta.finish_reason, delta.stop_token_id, getattr(delta, "stop_string", ""))
        if response.HasField("usage"):
            found["usage"] = (response.usage.prompt_tokens, response.usage.output_tokens)
    return found


async def answers(client: Any, requests: list[Any]) -> Answers:
    return list(await asyncio.gather(*(answer(client, request, Received()) for request in requests)))


async def answers_while_killing(server: Server, client: Any, requests: list[Any], roles: tuple[str, ...]) -> Answers:
    """Asks everything at once, and kills a process of each role in turn. Before each kill, new tokens have come."""
    received = Received()
    tasks = [asyncio.create_task(answer(client, request, received)) for request in requests]
    async with asyncio.timeout(SECONDS):
        for role in roles:
            at = received.num_tokens + 6 * NUM_STREAMS
            while received.num_tokens < at or not (pids := pids_of(server, role)):  # noqa: ASYNC110 - other tasks count
                await asyncio.sleep(0.02)
            assert any(not task.done() for task in tasks), f"the {role} is killed under load"
            os.kill(pids[0], signal.SIGKILL)
        return list(await asyncio.gather(*tasks))


def pids_of(server: Server, role: str) -> list[int]:
    return [pid for pid in children_of(server.process.pid) if role_of(pid) == role]


def num_deaths(server: Server) -> int:
    return len(re.findall(r"was killed by", server.log))


@pytest.mark.timeout(600)
def test_32_streams_survive_tokenizers_engine_and_worker() -> None:
    requests = [text_request(number) for number in range(NUM_STREAMS)]
    roles = ("tokenizer", "engine", "tokenizer", "worker", "tokenizer", "engine", "worker")

    async def run(server: Server) -> None:
        targets = [f"unix:{server.runtime_dir}/tokenizer-{number}.sock" for number in range(2)]
        async with TextClient(*targets) as client:
            expected = await answers(client, requests)
            assert await answers_while_killing(server, client, requests, roles) == expected

    with Server("--tokenizer-replicas=2") as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        asyncio.run(run(server))
        wait_for(lambda: num_deaths(server) == len(roles), "every death is logged")


@pytest.mark.timeout(600)
@pytest.mark.long
def test_32_streams_of_tokens_survive_engine_and_worker() -> None:
    requests = [engine_request(number) for number in range(NUM_STREAMS)]

    async def run(server: Server) -> None:
        async with EngineClient(f"unix:{server.runtime_dir}/engine.sock") as client:
            expected = await answers(client, requests)
            assert await answers_while_killing(server, client, requests, ("engine", "worker", "engine")) == expected

    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        asyncio.run(run(server))
