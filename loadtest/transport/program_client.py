"""A program that calls Generate: one call per stream, all over one connection. It records when tokens arrive.

The counterpart of loadtest/transport/stream_client.py for the gRPC edges; it prints and writes the same.
`python -m loadtest.transport.program_client text|tokens TARGET SECRET_FILE FILE RECEIVED_FILE NUM_STREAMS NUM_TOKENS`;
SECRET_FILE is empty for a Unix socket.
"""

import asyncio
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop

from loadtest.transport.instant_worker import prompt_of, received_count
from loadtest.transport.stream_client import Progress, letter_ids
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, engine_pb2_grpc, text_pb2, text_pb2_grpc
from services.rpc.transport import open_channel
from services.security.secret import read_secret

STUBS: dict[str, Any] = {"text": text_pb2_grpc.TextServiceStub, "tokens": engine_pb2_grpc.EngineServiceStub}


def request_of(service: str, number: int, num_tokens: int) -> Any:
    """Returns the request of one stream."""
    sampling = pb.SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
    if service == "tokens":
        return engine_pb2.GenerateTokensRequest(prompt_token_ids=prompt_of(number), stream=True, sampling=sampling)
    prompt = text_pb2.TokenIds(ids=prompt_of(number))
    return text_pb2.GenerateTextRequest(token_ids=prompt, stream=True, sampling=sampling)


async def receive(call: Any, progress: Progress) -> tuple[list[int], list[int], int]:
    """Reads one call to its end. Returns (when each token arrived, in ns; the tokens; number of responses)."""
    times: list[int] = []
    token_ids: list[int] = []
    num_responses = 0
    async for response in call:
        num_responses += 1
        new = response.choices[0].token_ids
        times += [time.monotonic_ns()] * len(new)
        if new and not token_ids:
            progress.first_token()
        token_ids += new
        progress.received[0] += len(new)
    progress.end()
    return times, token_ids, num_responses


def check_order(token_ids: list[int], letters: list[int]) -> None:
    """Raises ValueError when a token is lost, repeated or swapped. `letters`: what the worker repeats."""
    start = letters.index(token_ids[0])
    if token_ids != [letters[(start + place) % len(letters)] for place in range(len(token_ids))]:
        raise ValueError(f"tokens were lost, repeated or swapped: {token_ids[:100]}")


async def run(
    service: str, target: str, secret_file: str, received_file: str, num_streams: int, num_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Runs all streams. Returns (when each token arrived, in ns [streams, tokens]; responses [streams]).

    Raises ValueError when a stream did not get all of its tokens in order."""
    progress = Progress(num_streams, received_count(received_file))
    secret = read_secret(secret_file) if secret_file else None
    async with open_channel(target, secret) as channel:
        stub = STUBS[service](channel)
        calls = [stub.Generate(request_of(service, number, num_tokens)) for number in range(num_streams)]
        found = await asyncio.gather(*(receive(call, progress) for call in calls))
    received, letters = np.zeros((num_streams, num_tokens), dtype=np.int64), letter_ids()
    for number, (times, token_ids, _) in enumerate(found):
        if len(times) != num_tokens:
            raise ValueError(f"stream {number} got {len(times)} of {num_tokens} tokens")
        check_order(token_ids, letters)
        received[number] = times
    return received, np.array([num_responses for _, _, num_responses in found])


if __name__ == "__main__":
    service, target, secret_file, file, received_file, num_streams, num_tokens = sys.argv[1:]
    received, chunks = uvloop.run(run(service, target, secret_file, received_file, int(num_streams), int(num_tokens)))
    np.savez(file, received=received, chunks=chunks)
