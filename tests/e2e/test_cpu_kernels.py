"""The compiled kernels that are not the fastest on this machine, through the server: they are chosen by name, give
right answers, and are batch-invariant.

One small model in float32 for all tests; `make test-long` also runs parity and determinism of more shapes and dtypes.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernels.cpu.library import VARIANTS, runnable_variants
from services.rpc.generated.engine_pb2 import EngineStats
from tests import reference
from tests.checkpoints import PARITY_CONFIGS, make_qwen3
from tests.e2e.harness import Server, run_tandem
from tests.e2e.options import OTHER_KERNELS, needs_kernels, role_pid
from tests.e2e.test_determinism import at_random_moments, one_by_one, requests
from tests.e2e.test_parity import BLOCK_SIZE, Case, check, few_blocks

SHAPE = "odd-sizes"
MAX_TOKENS = 12
MAX_CROWDS = 8
LIMITS = ("--max-num-batched-tokens=48", "--max-num-seqs=16", "--max-model-len=300", f"--block-size={BLOCK_SIZE}")
each_variant = pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=needs_kernels(one)) for one in OTHER_KERNELS]
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=3, **PARITY_CONFIGS[SHAPE])


@pytest.fixture(scope="module")
def case(path: Path) -> Case:
    prompts = reference.mixed_prompts(seed=1, count=8, lengths=(3, 40, 90))
    return Case(path, prompts, reference.generate(path, prompts, MAX_TOKENS), MAX_TOKENS)


@pytest.fixture(scope="module")
def servers(path: Path) -> Iterator[dict[str, Server]]:
    """Servers by variant, and the default one. One is set by the flag, one by the environment (empty means unset)."""
    common = (str(path), "--dtype=float32", *LIMITS, f"--kv-cache-memory-bytes={few_blocks(path)}")
    chosen = {
        "default": Server(*common, env={"TANDEM_CPU_KERNELS": ""}),
        "avx2": Server(*common, "--cpu-kernels=avx2", env={"TANDEM_CPU_KERNELS": "portable"}),
        "portable": Server(*common, env={"TANDEM_CPU_KERNELS": "portable"}),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(server)
            for name, server in chosen.items()
            if name in ("default", *runnable_variants())
        }


def test_cpu_kernels(servers: dict[str, Server]) -> None:
    """Log, loaded modules and fingerprint name the kernels in use; the default is the fastest variant."""
    fingerprints: dict[str, str] = {}
    for name, server in servers.items():
        variant = runnable_variants()[0] if name == "default" else name
        assert f"kernels on cpu: {variant}, batch-invariant" in server.log
        mapped = Path(f"/proc/{role_pid(server, 'worker')}/maps").read_text()
        assert {one for one in VARIANTS if f"kernels/cpu/_{one}." in mapped} == {variant, "portable"}
        answer = server.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()
        assert fingerprints.setdefault(variant, answer["system_fingerprint"]) == answer["system_fingerprint"]
    assert len(set(fingerprints.values())) == len(fingerprints) == len({runnable_variants()[0], *servers} - {"default"})


def test_a_variant_that_this_machine_cannot_run_is_refused_by_name(socket_dir: Path) -> None:
    refused = [one for one in VARIANTS if one not in runnable_variants()]
    if not refused:
        pytest.skip(f"this machine runs all of {', '.join(VARIANTS)}")
    engine = f"--engine=ipc://{socket_dir}/worker.sock"
    ended = run_tandem("worker", "--device=cpu", engine, env={"TANDEM_CPU_KERNELS": refused[0]})
    line = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1 and line.startswith(f"tandem worker: error: --cpu-kernels {refused[0]}: ")
    assert line.endswith(f"; this machine runs {', '.join(runnable_variants())}")


@each_variant
def test_parity(servers: dict[str, Server], case: Case, variant: str) -> None:
    """Eight prompts at once in small steps: token for token equal to transformers."""
    before = servers[variant].stats()
    check(servers[variant], case)
    assert servers[variant].stats().num_chunked_rows > before.num_chunked_rows


@each_variant
def test_determinism(servers: dict[str, Server], variant: str) -> None:
    """Bit-identical results alone, without prefix hits, and among many requests that share prefixes."""
    server, bodies, source = servers[variant], requests(seed=1)[:16], random.Random(1)
    before = server.stats()
    alone = asyncio.run(one_by_one(server, [{**body, "cache_salt": str(n)} for n, body in enumerate(bodies)]))
    quiet = server.stats()
    assert quiet.prefix_cache_hits == before.prefix_cache_hits and quiet.num_preemptions == before.num_preemptions
    asyncio.run(one_by_one(server, bodies[2::4]))  # so that the prefixes of the others are cached
    crowds = 0
    while crowds < MAX_CROWDS and not (crowds and is_crowded(server, quiet)):
        crowd = asyncio.run(at_random_moments(server, bodies, source, seconds=0.5**crowds / 4))
        for index, (mine, theirs) in enumerate(zip(crowd, alone, strict=True)):
            assert mine["token_ids"] == theirs["token_ids"], f"request {index}"
            assert mine["logprobs"] == theirs["logprobs"], f"request {index}"
        crowds += 1
    assert is_crowded(server, quiet), f"{crowds} crowds left it at peace: {server.stats()}"


def is_crowded(server: Server, quiet: EngineStats) -> bool:
    """Since `quiet`, requests were preempted, prompts were chunked, and prefixes were found in the cache."""
    now = server.stats()
    return bool(
        now.num_preemptions - quiet.num_preemptions > 3
        and now.num_chunked_rows - quiet.num_chunked_rows > 10
        and now.prefix_cache_hits - quiet.prefix_cache_hits > 100
    )
