"""--quantization int8, --no-batch-invariant and bfloat16 in chunks with every family; sizes that are odd."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels import reference
from kernels.torch_matrix import TorchMatrix
from kernels.torch_ops import TorchOps
from kernels.weight_parts import joined
from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.worker.loading import load_model
from services.worker.models.decoder import Decoder
from tests.worker.in_process import InProcess
from tests.worker.models.parity_cases import CASES, ONE_OF_EACH, Case
from tests.worker.models.truth import BLOCK_SIZE, TOLERANCE, assert_greedy, log_probs, own_log_probs, prompts_of, saved

NUM_TOKENS = 16
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=0)
ALL = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.long) for name in CASES]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: case.save(folder / name) for name, case in CASES.items()}


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    """--no-batch-invariant sets torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def options(path: Path, case: Case, **more: Any) -> WorkerOptions:
    return WorkerOptions(
        model=str(path), device="cpu", block_size=BLOCK_SIZE, max_model_len=case.max_model_len, **more
    )  # fmt: skip


class RoundedOps(TorchOps):
    """Plain matrices of the values that int8 weights have."""

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> TorchMatrix:
        if exact:
            return TorchMatrix(joined(parts, dtype, device))
        steps, scales = reference.quantise(joined(parts, dtype, device))
        return TorchMatrix(steps.float() * scales[:, None])


@pytest.mark.parametrize("name", ALL)
def test_int8_gives_what_its_rounded_weights_give(paths: dict[str, Path], name: str) -> None:
    case, path = CASES[name], paths[name]

    def decoder(ops: TorchOps | None = None, **more: Any) -> Decoder:
        return load_model(path, options(path, case, dtype="float32", **more), ops).decoder

    quantised, rounded, plain = decoder(quantization="int8"), decoder(RoundedOps()), decoder()
    for prompt in prompts_of(case, 2):
        found, expected, exact = (own_log_probs(each, prompt) for each in (quantised, rounded, plain))
        assert (found - expected).abs().max() <= 10 * TOLERANCE
        assert (found - exact).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("quantization", [None, "int8"], ids=["plain", "int8"])
@pytest.mark.parametrize("name", ALL)
def test_chunks_and_neighbours_change_no_bit_in_bfloat16(
    paths: dict[str, Path], name: str, quantization: str | None
) -> None:
    case, path = CASES[name], paths[name]
    chosen = options(path, case, dtype="bfloat16", quantization=quantization)
    model = load_model(path, chosen)
    prompts = prompts_of(case, 5)
    alone = InProcess(path, chosen, BatchLimits(1, 1, 512), prefix_caching=False, model=model)
    expected = [alone.complete([prompt], GREEDY)[0] for prompt in prompts]
    together = InProcess(path, chosen, BatchLimits(1, 5, 29), model=model)
    assert together.complete(prompts, GREEDY) == expected
    assert together.stats.num_chunked_rows > 3
    assert together.complete(prompts, GREEDY) == expected
    assert together.stats.prefix_cache_hits > 50


@pytest.mark.parametrize("name", ALL)
def test_without_batch_invariance_answers_are_those_of_transformers(paths: dict[str, Path], name: str) -> None:
    case, path = CASES[name], paths[name]
    engine = InProcess(path, options(path, case, dtype="float32", batch_invariant=False), BatchLimits(1, 4, 64))
    assert engine.facts.numerics_id.startswith("fast-")
    prompts = prompts_of(case, 4)
    assert_greedy(case.reference(path), prompts, engine.complete(prompts, GREEDY), NUM_TOKENS)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("qwen3", {"head_dim": 16, "hidden_size": 65}), "hidden_size 65 is odd"),
        (Case("llama", {"intermediate_size": 97}), "intermediate_size 97 is odd"),
        (Case("stablelm", {"hidden_size": 68}), "head_dim 17 is odd"),
    ],
    ids=["hidden_size", "intermediate_size", "head_dim"],
)
def test_an_odd_size_is_refused_in_bfloat16_on_a_cpu(tmp_path: Path, case: Case, message: str) -> None:
    """In float32, and with torch's kernels in bfloat16 too, it is served."""
    path, model = saved(case, tmp_path)
    for quantization in (None, "int8"):
        with pytest.raises(ModelError, match=f"{message}.*--dtype float32 or --no-batch-invariant"):
            load_model(path, options(path, case, dtype="bfloat16", quantization=quantization))
    prompt = prompts_of(case, 1)[0]
    expected = log_probs(model, prompt)
    for more, bound in (({"dtype": "float32"}, 5 * TOLERANCE), ({"dtype": "bfloat16", "batch_invariant": False}, 5.0)):
        decoder = load_model(path, options(path, case, **more)).decoder
        assert (own_log_probs(decoder, prompt) - expected).abs().max() <= bound
