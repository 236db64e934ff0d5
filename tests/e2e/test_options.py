"""Every option of `tandem serve` has an effect that shows from outside, and one test here that names it (see PROOFS).

Several options share one server where their effects do not touch: starting one takes seconds.
"""

import contextlib
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from services.command_line import serve_settings
from tests.checkpoints import make_qwen3
from tests.e2e import test_admission, test_hangs, test_hub, test_logs, test_traces
from tests.e2e.harness import TANDEM, Server, children_of, run_tandem, wait_for

FLAG_KEY, ENVIRONMENT_KEY = "key-of-the-flag", "key-of-the-environment"
DEMO_BLOCK_BYTES = 2 * 4 * 16 * 2 * 32 * 2  # keys and values, layers, tokens, heads, head size, bfloat16
HOST = "127.0.0.2"


def tokens_of(server: Server, prompt: Any, **kwargs: Any) -> list[int]:
    token_ids: list[int] = server.complete(prompt, ignore_eos=True, **kwargs)["token_ids"]
    return token_ids


def chat(server: Server, text: str, **kwargs: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "return_token_ids": True, **kwargs}
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def model_cards(server: Server) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = server.get("/v1/models").json()["data"]
    return cards


def refusal(*args: str) -> str:
    """The line that says why `tandem serve` does not start."""
    ended = run_tandem("serve", "--port=0", *args)
    assert ended.returncode != 0
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("tandem ") and " error: --" in line)
    return line


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with Server("--device=cpu", "--enable-prefix-caching") as server:
        yield server


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "deep"


@pytest.fixture(scope="module")
def tight(records: Path) -> Iterator[Server]:
    """The demo model within narrow limits."""
    limits = ("--max-model-len=256", "--max-num-seqs=2", "--max-num-batched-tokens=32", "--block-size=8")
    names = ("--served-model-name", "first", "second")
    others = ("--dtype=float32", "--no-enable-prefix-caching", "--tokenizer-replicas=2", "--generation-config=vllm")
    steps = ("--scheduling-policy=priority", "--long-prefill-token-threshold=8", "--no-async-scheduling")
    kernels = ("--no-batch-invariant", f"--flight-recorder-dir={records}")
    with Server("demo", *limits, *names, *others, *steps, *kernels) as server:
        yield server


@dataclass(frozen=True)
class Front:
    """`tandem serve` with a port of our choice, which `Server` does not let one choose."""

    port: int
    pid: int
    runtime_dir: Path

    def get(self, path: str, key: str | None = None, host: str = HOST) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.get(f"http://{host}:{self.port}{path}", headers=headers, timeout=30, trust_env=False)

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.get("/health").status_code == 200
        return False


def free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder, port = tmp_path_factory.mktemp("front"), free_port()
    args = [f"--host={HOST}", f"--port={port}", f"--api-key={FLAG_KEY}", f"--runtime-dir={folder}/deep/run"]
    with (folder / "log").open("w") as log:
        env = {**os.environ, "TANDEM_API_KEY": ENVIRONMENT_KEY}
        process = subprocess.Popen([*TANDEM, "serve", *args], stderr=log, env=env)
        try:
            found = Front(port, process.pid, folder / "deep" / "run")
            wait_for(lambda: found.healthy() or process.poll() is not None, "healthy", 60)
            assert process.poll() is None, (folder / "log").read_text()
            yield found
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    with Server("--kv-cache-memory-bytes=1M", "--cpu-threads=3", env={"TANDEM_API_KEY": ENVIRONMENT_KEY}) as server:
        yield server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="module")
def described(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose configuration is changed from the command line."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "generation_config.json").write_text('{"max_new_tokens": 5}')
    (folder / "template").write_text(
        "{% for message in messages %}{{ message.role }} says {{ message.content }}{% endfor %}"
    )
    args = ['--hf-overrides={"max_position_embeddings": 128}', f"--generation-config={folder}"]
    with Server(str(small), *args, f"--chat-template={folder}/template") as server:
        yield server


@pytest.fixture(scope="module")
def filed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    lines = [
        f"model: {small}",
        "max-model-len: 100",
        "block_size: 8",
        "max-num-seqs: 1",
        "served-model-name: [from-file]",
        "chat-template: '{{ messages[0].content }}'",
    ]
    file = tmp_path_factory.mktemp("filed") / "options.yaml"
    file.write_text("\n".join(lines))
    with Server(f"--config={file}", "--max-model-len=64") as server:
        yield server


@dataclass(frozen=True)
class Draws:
    greedy: list[int]
    unseeded: list[list[int]]


@pytest.fixture(scope="module")
def dummies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draws, Draws, Draws]:
    """Answers of dummy weights with seeds 1, 1 and 2. There are no weights in the directory."""
    folder = make_qwen3(tmp_path_factory.mktemp("bare") / "model", tie_word_embeddings=False)
    (folder / "model.safetensors").unlink()
    return draws(folder, 1), draws(folder, 1), draws(folder, 2)


def draws(folder: Path, seed: int) -> Draws:
    with Server(str(folder), "--load-format=dummy", f"--seed={seed}") as server:
        greedy = tokens_of(server, "Hello", temperature=0, max_tokens=8)
        return Draws(greedy, [tokens_of(server, "Hello", temperature=1, max_tokens=8) for _ in range(2)])


def test_model(described: Server, small: Path, plain: Server) -> None:
    assert [card["id"] for card in model_cards(described)] == [str(small)]
    assert [card["id"] for card in model_cards(plain)] == ["demo"]


def test_host(front: Front) -> None:
    assert front.get("/health").status_code == 200
    with pytest.raises(httpx.ConnectError):
        front.get("/health", host="127.0.0.1")


def test_port(front: Front) -> None:
    assert front.get("/version").status_code == 200


def test_runtime_dir(front: Front) -> None:
    names = {path.name for path in front.runtime_dir.iterdir()}
    assert names == {"engine.sock", "worker.sock", "tokenizer-0.sock", "lock"}
    assert stat.S_IMODE(front.runtime_dir.stat().st_mode) == 0o700


def test_api_key(front: Front) -> None:
    assert front.get("/v1/models", FLAG_KEY).status_code == 200
    for wrong in (None, FLAG_KEY + "x", FLAG_KEY[:-1], ENVIRONMENT_KEY):
        response = front.get("/v1/models", wrong)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert front.get("/health").status_code == 200


def test_api_key_from_the_environment(keyed: Server) -> None:
    assert keyed.get("/v1/models").status_code == 401
    assert keyed.get("/v1/models", headers={"Authorization": f"Bearer {ENVIRONMENT_KEY}"}).status_code == 200


def test_api_key_is_on_no_command_line(front: Front, keyed: Server) -> None:
    children = children_of(front.pid) + keyed.pids
    assert len(children) == 8
    for pid in [*children, keyed.process.pid]:
        command_line = Path(f"/proc/{pid}/cmdline").read_text()
        assert "services.cli" in command_line
        assert FLAG_KEY not in command_line and ENVIRONMENT_KEY not in command_line


def test_dtype(plain: Server, tight: Server) -> None:
    coarse, fine = (server.complete("Hello", temperature=0, max_tokens=1, logprobs=1) for server in (plain, tight))
    assert coarse["token_ids"] == fine["token_ids"]
    (low,), (high,) = (choice["logprobs"]["token_logprobs"] for choice in (coarse, fine))
    assert low != high and low == pytest.approx(high, abs=0.1)
    assert "as bfloat16" in plain.log and "as float32" in tight.log


def test_device(plain: Server) -> None:
    assert "loading weights on cpu" in plain.log
    if torch.cuda.is_available():
        with Server("--device=cuda") as server:
            assert "loading weights on cuda" in server.log
    else:
        assert "error: --device cuda: this machine has no CUDA device" in refusal("--device=cuda")


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
    """100 tokens are 3 rows of 32 and one of 4, where only 32 fit into a step."""
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


@pytest.mark.parametrize(("name", "kind", "kernels"), [("plain", "invariant", ""), ("tight", "fast", "torch, not ")])
def test_batch_invariant(request: pytest.FixtureRequest, name: str, kind: str, kernels: str) -> None:
    """Log and fingerprint say which; tests/e2e/test_determinism.py shows what it means."""
    server: Server = request.getfixturevalue(name)
    answer = server.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()
    assert answer["system_fingerprint"].startswith(f"{kind}-")
    assert f"{kernels}batch-invariant" in server.log


def test_quantization(plain: Server) -> None:
    """Nearly the same logprobs from other numerics, the same each time; refused where there are no such kernels."""
    prompt = list(range(900, 930))
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1}
    with Server("--quantization=int8", "--no-enable-prefix-caching") as server:
        first, again = (server.complete(prompt, **asked) for _ in range(2))
        fingerprint = server.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()["system_fingerprint"]
        assert "+int8, batch-invariant" in server.log
    assert first["logprobs"] == again["logprobs"]
    (exact,), (near,) = (one["logprobs"]["token_logprobs"] for one in (plain.complete(prompt, **asked), first))
    assert exact != near and exact == pytest.approx(near, abs=0.3)
    answer = plain.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()
    assert fingerprint.startswith("invariant-") and fingerprint != answer["system_fingerprint"]
    line = refusal("--quantization=int8", "--no-batch-invariant")
    assert line.startswith("tandem worker: error: --quantization int8 does not go with --no-batch-invariant")
    line = refusal("--quantization=fp8", "--device=cpu")
    assert line.startswith("tandem worker: error: --quantization fp8 is for CUDA only")
    assert "'int4' is not one of int8, fp8" in refusal("--quantization=int4")


def test_long_prefill_token_threshold(tight: Server) -> None:
    """64 tokens are 8 rows of 8 while another request shares the steps."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(tokens_of, tight, [7] * 10, max_tokens=240)
        wait_for(lambda: tight.stats().num_running == 1, "the other runs")
        before = tight.stats().num_chunked_rows
        tokens_of(tight, list(range(100, 164)), max_tokens=1)
        assert tight.stats().num_chunked_rows - before == 7
        other.result()


def test_scheduling_policy(tight: Server, plain: Server) -> None:
    """Of two that wait, the urgent one that came later runs first."""
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
    """SIGUSR1 writes down what can be gone through again; without the option it only says so."""
    tokens_of(tight, [7] * 10, max_tokens=20)
    os.kill(role_pid(tight, "engine"), signal.SIGUSR1)
    wait_for(lambda: "flight recorder written" in tight.log, "the record")
    (file,) = records.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    replayed = run_tandem("replay", str(file))
    assert replayed.returncode == 0 and int(replayed.stdout.split()[0]) >= 20, replayed.stdout
    os.kill(role_pid(plain, "engine"), signal.SIGUSR1)
    wait_for(lambda: "nothing is recorded: see --flight-recorder-dir" in plain.log, "the reason")
    assert len(tokens_of(plain, [7] * 10, max_tokens=2)) == 2


def role_pid(server: Server, role: str) -> int:
    return next(pid for pid in server.pids if f"\0{role}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_served_model_name(tight: Server) -> None:
    assert [card["id"] for card in model_cards(tight)] == ["first", "second"]
    for name in ("first", "second"):
        assert tight.post("/v1/completions", {"prompt": "Hello", "model": name}).json()["model"] == name
    assert tight.post("/v1/completions", {"prompt": "Hello", "model": "demo"}).status_code == 404


def test_tokenizer_replicas(tight: Server) -> None:
    """Both work when there is work for two: texts short enough to be encoded, though too long for the model."""
    pids = [pid for pid in tight.pids if b"\0tokenizer\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(pids) == 2
    before = list(map(cpu_ticks, pids))
    with ThreadPoolExecutor(8) as pool:
        body = {"prompt": "Some words " * 80}
        answers = [pool.submit(tight.post, "/v1/completions", body) for _ in range(300)]
        assert {answer.result().status_code for answer in answers} == {400}
    assert all(after - earlier >= 3 for after, earlier in zip(map(cpu_ticks, pids), before, strict=True))


def cpu_ticks(pid: int) -> int:
    """User time, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def test_kv_cache_memory_bytes(keyed: Server) -> None:
    assert keyed.stats().num_blocks == 2**20 // DEMO_BLOCK_BYTES


def test_cpu_threads(keyed: Server, plain: Server) -> None:
    """The worker's own thread works as well."""
    assert (num_helpers(keyed), num_helpers(plain)) == (2, len(os.sched_getaffinity(0)) - 1)


def num_helpers(server: Server) -> int:
    threads = Path(f"/proc/{role_pid(server, 'worker')}/task").glob("*/comm")
    return [thread.read_text().strip() for thread in threads].count("kernels")


def test_gpu_memory_utilization() -> None:
    line = refusal("--device=cpu", "--gpu-memory-utilization=0.5")
    assert line.startswith("tandem worker: error: --gpu-memory-utilization is for CUDA only")


def test_load_format(dummies: tuple[Draws, Draws, Draws]) -> None:
    assert all(len(set(one.greedy)) > 1 for one in dummies)


def test_seed(dummies: tuple[Draws, Draws, Draws]) -> None:
    """It fixes the dummy weights and what requests without a seed of their own draw."""
    one, again, other = dummies
    assert one == again
    assert one.greedy != other.greedy
    assert one.unseeded[0] != one.unseeded[1]


def test_hf_overrides(described: Server) -> None:
    assert [card["max_model_len"] for card in model_cards(described)] == [128]


def test_generation_config_of_another_directory(described: Server) -> None:
    answer = chat(described, "Hello", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 5


def test_generation_config(plain: Server, tight: Server) -> None:
    """The demo's own says greedy; "vllm" is OpenAI's default, temperature 1."""
    request: dict[str, Any] = {"prompt": list(range(900, 930)), "max_tokens": 24, "seed": 5}
    for server, same, different in ((plain, 0.0, 1.0), (tight, 1.0, 0.0)):
        default = tokens_of(server, **request)
        assert default == tokens_of(server, **request, temperature=same)
        assert default != tokens_of(server, **request, temperature=different)


def test_chat_template(described: Server) -> None:
    answer = chat(described, "Hello", max_tokens=4, ignore_eos=True)
    same = described.complete("user says Hello", temperature=0, max_tokens=4, ignore_eos=True)
    assert answer["prompt_token_ids"] == same["prompt_token_ids"]
    assert answer["choices"][0]["token_ids"] == same["token_ids"]


def test_chat_template_itself_instead_of_a_file(filed: Server) -> None:
    ids = [chat(filed, "Hello", max_tokens=1)["prompt_token_ids"], filed.complete("Hello")["prompt_token_ids"]]
    assert ids[0] == ids[1]


def test_config(filed: Server) -> None:
    """What the file says holds; where a flag says otherwise, the flag does."""
    (card,) = model_cards(filed)
    assert (card["id"], card["max_model_len"]) == ("from-file", 64)
    assert filed.stats().num_blocks == 64 / 8


# Option -> its proof. A new option without one, or a proof under another name, fails below.
PROOFS: dict[str, Callable[..., None]] = {
    "api_key": test_api_key,
    "async_scheduling": test_async_scheduling,
    "batch_invariant": test_batch_invariant,
    "cpu_threads": test_cpu_threads,
    "block_size": test_block_size,
    "chat_template": test_chat_template,
    "config": test_config,
    "device": test_device,
    "dtype": test_dtype,
    "enable_prefix_caching": test_enable_prefix_caching,
    "flight_recorder_dir": test_flight_recorder_dir,
    "generation_config": test_generation_config,
    "gpu_memory_utilization": test_gpu_memory_utilization,
    "hf_overrides": test_hf_overrides,
    "host": test_host,
    "kv_cache_memory_bytes": test_kv_cache_memory_bytes,
    "load_format": test_load_format,
    "log_format": test_logs.test_log_format,
    "log_level": test_logs.test_log_level,
    "long_prefill_token_threshold": test_long_prefill_token_threshold,
    "max_concurrent_requests": test_admission.test_max_concurrent_requests,
    "max_model_len": test_max_model_len,
    "max_num_batched_tokens": test_max_num_batched_tokens,
    "max_num_queued_reqs": test_admission.test_max_num_queued_reqs,
    "max_num_queued_tokens": test_admission.test_max_num_queued_tokens,
    "max_num_seqs": test_max_num_seqs,
    "model": test_model,
    "otlp_traces_endpoint": test_traces.test_otlp_traces_endpoint,
    "port": test_port,
    "quantization": test_quantization,
    "revision": test_hub.test_revision_picks_the_other_weights,
    "runtime_dir": test_runtime_dir,
    "scheduling_policy": test_scheduling_policy,
    "seed": test_seed,
    "served_model_name": test_served_model_name,
    "step_timeout": test_hangs.test_step_timeout,
    "tokenizer_replicas": test_tokenizer_replicas,
}


def test_every_option_has_its_proof() -> None:
    assert PROOFS.keys() == {*serve_settings(), "config"}
    assert [name for name, proof in PROOFS.items() if not proof.__name__.startswith(f"test_{name}")] == []
