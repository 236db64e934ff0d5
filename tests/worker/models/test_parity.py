"""Every family answers token for token as transformers does in float32, and is as exact as transformers in bfloat16."""

from pathlib import Path

import pytest
import torch

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.kv_cache import block_bytes
from services.worker.loading import load_model
from services.worker.models.describe import FAMILIES
from tests.worker.in_process import InProcess
from tests.worker.models.parity_cases import CASES, ONE_OF_EACH, Case
from tests.worker.models.truth import assert_greedy, log_probs, own_log_probs, prompts_of, saved

NUM_TOKENS, MORE_TOKENS = 24, 40
BLOCK_SIZE = 8
FEW_BLOCKS = 32
FEW_OF_A_WINDOW = 12  # blocks of a group with a window: for two or three requests
BF16_FACTOR = 1.1  # of transformers' own distance from float32
ALL = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.long) for name in CASES]


class Served:
    """A checkpoint, and transformers' model of it."""

    def __init__(self, case: Case, path: Path) -> None:
        self.case = case
        self.path, self.model = saved(case, path)

    def start(self, budget: int = 512, seqs: int = 16, caching: bool = True, *, crowded: bool = False) -> InProcess:
        options = self.options(dtype="float32")
        if crowded:
            decoder = load_model(self.path, options).decoder
            num_blocks = sum(FEW_OF_A_WINDOW if window else FEW_BLOCKS for window in decoder.kv_layout.windows)
            size = num_blocks * block_bytes(decoder.description, decoder.kv_layout, BLOCK_SIZE, torch.float32)
            options = self.options(dtype="float32", kv_cache_memory_bytes=size)
        return InProcess(self.path, options, BatchLimits(1, seqs, budget), caching)

    def options(self, **more: object) -> WorkerOptions:
        return WorkerOptions(
            model=str(self.path), device="cpu", block_size=BLOCK_SIZE, max_model_len=self.case.max_model_len,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def check(self, engine: InProcess, prompts: list[list[int]], count: int = NUM_TOKENS) -> list[list[int]]:
        """Asserts that the answers of `count` tokens are transformers'. Returns their tokens."""
        answers = engine.complete(prompts, SamplingParams(max_tokens=count, temperature=0.0, logprobs=0))
        assert_greedy(self.model, prompts, answers, count)
        return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(CASES[request.param], tmp_path_factory.mktemp("model") / request.param)


def every_case(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", names, indirect=True)


def test_there_are_two_cases_of_every_family() -> None:
    counts = [sum(case.model_type == family.model_type for case in CASES.values()) for family in FAMILIES.values()]
    assert counts == [2] * len(FAMILIES) and len(ONE_OF_EACH) == len(FAMILIES)


@every_case(ALL)
def test_greedy_answers_are_those_of_transformers_in_chunks_too(served: Served) -> None:
    prompts = prompts_of(served.case, 8)
    engine = served.start(budget=40)
    answers = served.check(engine, prompts)
    assert len({token_id for answer in answers for token_id in answer}) > 25, "the model answers much the same for ever"
    assert engine.stats.num_chunked_rows > 4


@pytest.mark.long
@every_case(list(CASES))
def test_prefix_hits_chunks_and_preemptions_change_no_token(served: Served) -> None:
    prompts = prompts_of(served.case, 16)
    engine = served.start()
    answers = served.check(engine, prompts)
    before = engine.stats
    assert served.check(engine, prompts) == answers
    hits = engine.stats.prefix_cache_hits - before.prefix_cache_hits
    assert hits == sum((len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in prompts) > 300
    assert engine.stats.num_preemptions == 0

    chunked = served.start(budget=24, seqs=12, caching=False)
    assert served.check(chunked, prompts) == answers
    assert chunked.stats.num_chunked_rows > len(prompts)

    windows = engine.model.decoder.kv_layout.windows
    for caching in (True, False):
        crowded = served.start(budget=40, caching=caching, crowded=True)
        longer = served.check(crowded, prompts, MORE_TOKENS)
        assert [answer[:NUM_TOKENS] for answer in longer] == answers
        assert crowded.stats.num_blocks == crowded.stats.num_free_blocks
        # A request finds all blocks that it will ever have of a window, or is not admitted.
        assert crowded.stats.num_preemptions > (2 if not any(windows) else 1 if 0 in windows else -1)


@every_case(ALL)
def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(served: Served) -> None:
    """The mean distance of log-softmax to transformers' float32: shows where a result is rounded, and how often."""
    decoder = load_model(served.path, served.options(dtype="bfloat16")).decoder
    theirs = served.case.reference(served.path, torch.bfloat16)
    distances = [[], []]
    for prompt in prompts_of(served.case, 12):
        exact = log_probs(served.model, prompt)
        for found, each in zip((own_log_probs(decoder, prompt), log_probs(theirs, prompt)), distances, strict=True):
            each.append((found - exact).abs().mean())
    ours, reference = (torch.stack(each).mean().item() for each in distances)
    assert 0 < ours <= BF16_FACTOR * reference, f"{ours / reference:.3f} times transformers' distance"
