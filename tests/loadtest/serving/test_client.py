"""The HTTP client against a server with known chunks at known times: bodies, clocks, concurrency, failures."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

import demo
from loadtest.serving.client import Target, find_model, open_session, run
from loadtest.serving.workloads import Request, arrival_times
from services.errors import Fatal
from tests.addresses import HOST
from tests.loadtest.serving.bench_process import bench, bench_result
from tests.loadtest.serving.other_server import OtherServer

SMALL = ("--num-prompts=4", "--random-input-len=8", "--random-output-len=5")


def test_latencies_are_those_of_the_servers_chunks(tmp_path: Path) -> None:
    with OtherServer(chunks=5, first=0.2, gap=0.1) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert 200 <= found["mean_ttft_ms"] < 600
    assert 600 <= found["mean_e2el_ms"] < 1500
    assert 80 <= found["median_itl_ms"] < 200
    assert 80 <= found["median_tpot_ms"] < 200
    assert found["duration"] >= 0.6


def test_usage_is_preferred_to_the_number_of_chunks(tmp_path: Path) -> None:
    with OtherServer(usage={"prompt_tokens": 11, "completion_tokens": 15}) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert (found["total_input_tokens"], found["total_output_tokens"], found["without_usage"]) == (44, 60, 0)


def test_a_completion_request_has_the_fields_of_the_flags() -> None:
    flags = ("--temperature=0.5", "--ignore-eos", "--model=named", "--random-first-id=7", "--random-last-id=9")
    with OtherServer() as server:
        done = bench(f"--host={HOST}", f"--port={server.port}", *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    assert server.paths == ["/v1/completions"] * 4
    for body in server.bodies:
        prompt = body.pop("prompt")
        assert (len(prompt), set(prompt) <= {7, 8}) == (8, True)
        assert body == {
            "model": "named",
            "max_tokens": 5,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "ignore_eos": True,
        }


def test_a_chat_request_has_no_field_without_a_flag() -> None:
    chat = ("--endpoint=/v1/chat/completions", f"--tokenizer={demo.CHECKPOINT}")
    with OtherServer() as server:
        done = bench(f"--base-url={server.url}/v1/", *SMALL, *chat)
    assert done.returncode == 0, done.stderr
    assert "Total generated tokens:                  20" in done.stdout  # not the chunk with the role
    assert server.paths == ["/v1/chat/completions"] * 4
    assert server.bodies[0].keys() == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert server.bodies[0]["model"] == "other/model-1"
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["user"]


@pytest.mark.parametrize("limit", [1, 3])
def test_max_concurrency_is_kept(tmp_path: Path, limit: int) -> None:
    more = ("--num-prompts=12", f"--max-concurrency={limit}")
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *more)
    assert found["max_concurrent_requests"] == limit
    assert server.peak == limit
    assert found["max_concurrency"] == limit


def test_requests_are_sent_at_their_arrival_times(tmp_path: Path) -> None:
    with OtherServer(first=0, gap=0) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, "--request-rate=5", "--seed=1")
    assert found["request_rate"] == 5.0
    last = arrival_times(4, 5.0, seed=1)[-1]
    assert last > 0.2
    assert found["duration"] > last - 0.01  # a timer may fire a little early


@pytest.mark.parametrize("by_flag", [True, False], ids=["flag", "environment"])
def test_the_api_key_is_sent(by_flag: bool) -> None:
    flags = ["--api-key=a key"] if by_flag else []
    with OtherServer(api_key="a key") as server:
        done = bench(f"--base-url={server.url}", *SMALL, *flags, env={} if by_flag else {"OPENAI_API_KEY": "a key"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (OtherServer(broken=99), "HTTP 500: out of order"),
        (OtherServer(ending="cut"), "the stream ended before the answer was complete"),
        (OtherServer(ending="error"), "the stream has an error: lost my mind"),
        (OtherServer(ending='{"choices": [7]}'), "an event is not an OpenAI chunk: {'choices': [7]}"),
        (OtherServer(ending="[1, 2"), "an event is not JSON: [1, 2"),
    ],
    ids=["500", "cut", "error", "shape", "json"],
)
def test_an_incomplete_answer_is_a_failed_request(server: OtherServer, reason: str) -> None:
    with server:
        done = bench(f"--base-url={server.url}", *SMALL)
    assert done.returncode == 1
    assert f"Failed 4 times: {reason}" in done.stdout


def target(url: str, **more: Any) -> Target:
    return Target(url, "/v1/completions", "any", chat=False, **more)


async def test_results_are_in_the_order_of_the_requests() -> None:
    """The second request arrives first; each prompt comes back as its number of tokens."""
    requests = [Request((5,) * length, length, 5) for length in (3, 4)]
    with OtherServer(first=0, gap=0) as server:
        async with open_session(None) as session:
            results, seconds = await run(session, target(server.url), requests, arrivals=[0.2, 0.0])
    assert [len(body["prompt"]) for body in server.bodies] == [4, 3]
    assert [result.requested_input_len for result in results] == [3, 4]
    assert [(result.error, result.output_tokens) for result in results] == [(None, 5)] * 2
    assert results[0].start > results[1].start
    assert seconds >= 0.2


async def test_every_finished_request_is_reported() -> None:
    done: list[None] = []
    with OtherServer(first=0, gap=0, broken=1) as server:
        async with open_session(None) as session:
            requests = [Request((1,), 1, 5)] * 3
            results, _ = await run(
                session, target(server.url), requests, max_concurrency=1, on_done=lambda: done.append(None)
            )
    assert len(done) == 3
    assert [result.error for result in results] == ["HTTP 500: out of order", None, None]


async def test_a_server_that_is_gone_is_a_failed_request() -> None:
    with OtherServer() as gone:
        pass
    async with open_session(None) as session:
        (result,), _ = await run(session, target(gone.url), [Request((1,), 1, 5)])
    assert result.error is not None and result.chunk_times == [] and result.end >= result.start


def test_a_body_has_only_fields_that_were_asked_for() -> None:
    plain = target("http://a").body(Request((1, 2), 2, 7))
    assert plain == {
        "model": "any",
        "prompt": (1, 2),
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    more = target("http://a", temperature=0.0, ignore_eos=True).body(Request("x", 1, 7))
    assert (more["temperature"], more["ignore_eos"]) == (0.0, True)


async def test_the_model_is_the_first_of_the_list_or_the_named_one() -> None:
    with OtherServer(models=("first", "second")) as server:
        async with open_session(None) as session:
            models = f"{server.url}/v1/models"
            assert await find_model(session, models, None) == "first"
            assert await find_model(session, models, "named") == "named"
            with pytest.raises(Fatal, match="answers HTTP 404"):
                await find_model(session, f"{server.url}/models", None)


async def test_without_a_server_there_is_no_model() -> None:
    with OtherServer() as gone:
        pass
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Fatal, match=f"^no server answers at {gone.url}/v1/models: "):
            await find_model(session, f"{gone.url}/v1/models", "named")
