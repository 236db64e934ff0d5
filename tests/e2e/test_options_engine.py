"""Options of the engine, of names, defaults and replicas: a server with low limits is compared with a default one."""

import os
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.machine import cpu_seconds
from tests.e2e.harness import Server, run_tandem, wait_for
from tests.e2e.options import model_cards, role_pid, tokens_of


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "deep"


@pytest.fixture(scope="module")
def tight(records: Path) -> Iterator[Server]:
    """A server of the demo model with low limits."""
    limits = ("--max-model-len=256", "--max-num-seqs=2", "--max-num-batched-tokens=32", "--block-size=8")
    names = ("--served-model-name", "first", "second")
    others = ("--no-enable-prefix-caching", "--tokenizer-replicas=2", "--generation-config=vllm")
    steps = ("--scheduling-policy=priority", "--long-prefill-token-threshold=8", "--no-async-scheduling")
    # Slow, or an answer may be over before a test has looked at it; torch with two threads on busy cores takes minutes.
    slow = ("--dtype=float32", "--no-batch-invariant", "--cpu-threads=1")
    with Server("demo", *limits, *names, *others, *steps, *slow, f"--flight-recorder-dir={records}") as server:
        yield server


def test_max_model_len(tight: Server) -> None:
    assert {card["max_model_len"] for card in model_cards(tight)} == {256}
    assert len(tokens_of(tight, [7] * 250, max_tokens=6)) == 6
    refused = tight.post("/v1/completions", {"prompt": [7] * 250, "max_tokens": 7})
    assert refused.status_code == 400 and "256" in refused.text


def test_max_num_seqs(tight: Server) -> None:
    """Of three choices, one waits."""
    body = {"prompt": "Hello", "n": 3, "max_tokens": 100, "ignore_eos": True}
    running = set()

    def one_waits() -> bool:
        stats = tight.stats()
        running.add(stats.num_running)
        return bool((stats.num_running, stats.num_waiting) == (2, 1))

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tight.post, "/v1/completions", body)
        wait_for(one_waits, "a choice that waits")
        wait_for(lambda: one_waits() or answer.done(), "answer")
        assert len(answer.result().json()["choices"]) == 3
    assert max(running) == 2


@pytest.mark.parametrize(("name", "steps"), [("plain", 1), ("tight", 4)])
def test_max_num_batched_tokens(request: pytest.FixtureRequest, name: str, steps: int) -> None:
    """100 tokens take 3 steps of 32 and one of 4 where a step holds 32."""
    server: Server = request.getfixturevalue(name)
    before = server.stats()
    tokens_of(server, list(range(100, 200)), max_tokens=1)
    after = server.stats()
    assert after.num_steps - before.num_steps == steps
    assert after.num_chunked_rows - before.num_chunked_rows == steps - 1


def test_block_size(tight: Server) -> None:
    """Two requests of 256 tokens fill the cache."""
    assert tight.stats().num_blocks == 2 * 256 / 8


@pytest.mark.parametrize(("name", "hits"), [("plain", 48), ("tight", 0)])
def test_enable_prefix_caching(request: pytest.FixtureRequest, name: str, hits: int) -> None:
    """Of 64 tokens, 3 blocks of 16 are found; the last block is computed, for its last token's logits."""
    server: Server = request.getfixturevalue(name)
    prompt = list(range(500, 564))
    first = tokens_of(server, prompt, temperature=0, max_tokens=4)
    before = server.stats()
    assert tokens_of(server, prompt, temperature=0, max_tokens=4) == first
    assert server.stats().prefix_cache_hits - before.prefix_cache_hits == hits


@pytest.mark.parametrize(("name", "ahead"), [("plain", True), ("tight", False)])
def test_async_scheduling(request: pytest.FixtureRequest, name: str, ahead: bool) -> None:
    server: Server = request.getfixturevalue(name)
    before = server.stats()
    tokens_of(server, [7] * 10, max_tokens=20)
    after = server.stats()
    steps = after.num_steps - before.num_steps
    assert steps == 20
    assert after.num_steps_ahead - before.num_steps_ahead == (steps - 1 if ahead else 0)


def test_long_prefill_token_threshold(tight: Server) -> None:
    """64 tokens take 8 steps of 8 while another request runs."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(tokens_of, tight, [7] * 10, max_tokens=240)
        wait_for(lambda: tight.stats().num_running == 1, "the other runs")
        before = tight.stats().num_chunked_rows
        tokens_of(tight, list(range(100, 164)), max_tokens=1)
        assert tight.stats().num_chunked_rows - before == 7
        other.result()


def test_scheduling_policy(tight: Server, plain: Server) -> None:
    """Of two waiting requests the later one with the lower priority value runs first."""
    order: list[str] = []

    def ask(name: str, **body: Any) -> None:
        tokens_of(tight, [7] * 10, **body)
        order.append(name)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, "running", max_tokens=count) for count in (240, 120)]
        wait_for(lambda: tight.stats().num_running == 2, "both places are taken")
        later = pool.submit(ask, "later", max_tokens=2, priority=1)
        wait_for(lambda: tight.stats().num_waiting == 1, "one waits")
        urgent = pool.submit(ask, "urgent", max_tokens=2, priority=-1)
        for answer in (*running, later, urgent):
            answer.result()
    assert order == ["running", "urgent", "later", "running"]
    refused = plain.post("/v1/completions", {"prompt": "a", "priority": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"


def test_flight_recorder_dir(tight: Server, plain: Server, records: Path) -> None:
    """SIGUSR1 writes a recording that can be replayed; without the option it only logs a line."""
    tokens_of(tight, [7] * 10, max_tokens=20)
    os.kill(role_pid(tight, "engine"), signal.SIGUSR1)
    wait_for(lambda: "recording written" in tight.log, "the record")
    (file,) = records.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    replayed = run_tandem("replay", str(file))
    assert replayed.returncode == 0 and int(replayed.stdout.split()[0]) >= 20, replayed.stdout
    os.kill(role_pid(plain, "engine"), signal.SIGUSR1)
    wait_for(lambda: "nothing is recorded: see --flight-recorder-dir" in plain.log, "the reason")
    assert len(tokens_of(plain, [7] * 10, max_tokens=2)) == 2


def test_model_that_is_served_by_default(plain: Server) -> None:
    assert [card["id"] for card in model_cards(plain)] == ["demo"]


def test_served_model_name(tight: Server) -> None:
    assert [card["id"] for card in model_cards(tight)] == ["first", "second"]
    for name in ("first", "second"):
        assert tight.post("/v1/completions", {"prompt": "Hello", "model": name}).json()["model"] == name
    assert tight.post("/v1/completions", {"prompt": "Hello", "model": "demo"}).status_code == 404


def test_generation_config(plain: Server, tight: Server) -> None:
    """The demo's file sets greedy sampling; "vllm" means OpenAI's default, temperature 1."""
    request: dict[str, Any] = {"prompt": list(range(900, 930)), "max_tokens": 24, "seed": 5}
    for server, same, different in ((plain, 0.0, 1.0), (tight, 1.0, 0.0)):
        default = tokens_of(server, **request)
        assert default == tokens_of(server, **request, temperature=same)
        assert default != tokens_of(server, **request, temperature=different)


def test_tokenizer_replicas(tight: Server) -> None:
    """Both replicas encode texts at once: short enough to be encoded, but too long for the model."""
    pids = [pid for pid in tight.pids if b"\0tokenizer\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(pids) == 2
    before = list(map(cpu_seconds, pids))
    with ThreadPoolExecutor(8) as pool:
        body = {"prompt": "Some words " * 80}
        answers = [pool.submit(tight.post, "/v1/completions", body) for _ in range(300)]
        assert {answer.result().status_code for answer in answers} == {400}
    spent = [after - earlier for after, earlier in zip(map(cpu_seconds, pids), before, strict=True)]
    assert min(spent) > 0.1 * sum(spent)
