"""Decoding with graphs gives the same tokens and logprobs, bit for bit, as without. Triton kernels, interpreted, on a
CPU device that replays captured functions."""

from pathlib import Path

import pytest

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels.gpu.ops import TritonOps
from loadtest.gpu.ahead import run_steps
from services.options.declarations import WorkerOptions
from services.worker.device import Device
from services.worker.loading import LoadedModel, load_model
from tests.checkpoints import make_qwen3
from tests.worker.fake_graph_device import FakeGraphDevice
from tests.worker.in_process import Answer, InProcess

SHAPE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 60}
PROMPTS = [[5, 6, 7], [9] * 6, [11, 12], [3, 1, 4, 1, 5]]
LENGTHS = [2, 7, 4, 5]  # max_tokens: requests finish one by one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_qwen3(tmp_path_factory.mktemp("graphs"), seed=3, **SHAPE)
    return load_model(path, options(path), TritonOps())


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[Answer]:
    return ask(start(model, None))


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(model=str(path), device="cpu", dtype="float32", block_size=4, max_model_len=24)


def start(model: LoadedModel, device: Device | None, max_num_seqs: int = 4) -> InProcess:
    path = model.checkpoint.path
    return InProcess(path, options(path), BatchLimits(1, max_num_seqs, 8), model=model, device=device)


def ask(engine: InProcess, ahead: bool = False) -> list[Answer]:
    """Runs all prompts in one batch; one is chunked. `ahead`: launches a step before the last one is collected."""
    answers = [
        engine.add(prompt, SamplingParams(max_tokens=length, temperature=0.8, logprobs=0), seed=index)
        for index, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    if ahead:
        run_steps(engine)
    while engine.step():
        pass
    return answers


def test_graphs_change_nothing(model: LoadedModel, expected: list[Answer]) -> None:
    device = FakeGraphDevice(graph_sizes=(1, 3, 8))
    engine = start(model, device)
    for ahead in (False, True):  # the first run captures graphs when they are needed; the second only replays
        assert ask(engine, ahead) == expected
    assert device.num_captures == 3  # 1, 3, and 4: as many as there are slots
    assert device.num_replays > 2 * max(LENGTHS) - 6


def test_capturing_between_steps_changes_no_answer(model: LoadedModel, expected: list[Answer]) -> None:
    """Idle workers capture graphs, the largest first. The state of running requests stays."""
    device = FakeGraphDevice(graph_sizes=(1, 2, 8))
    engine = start(model, device)
    recorded = []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        engine.add(prompt, SamplingParams(max_tokens=length, temperature=0.8, logprobs=0), seed=len(recorded))
        recorded.append(engine.runner.capture_next_graph())
        engine.step()
    while engine.step():
        pass
    assert recorded == [True, True, False, False] and device.num_captures == 3  # build_runner captured one
    assert [answer.token_ids for answer in engine.answers.values()] == [answer.token_ids for answer in expected]


def test_the_profile_run_changes_no_answer(model: LoadedModel, expected: list[Answer]) -> None:
    engine = start(model, FakeGraphDevice(graph_sizes=(1, 8)))
    engine.runner.profile_run()
    assert ask(engine) == expected


def test_without_memory_for_graphs_batches_run_without_graphs(
    model: LoadedModel, expected: list[Answer], caplog: pytest.LogCaptureFixture
) -> None:
    """Also batches that a larger graph could run: it would compute too many rows."""
    device = FakeGraphDevice(graph_sizes=(1, 2, 8), max_graphs=1)
    engine = start(model, device)
    assert ask(engine) == expected
    assert device.num_captures == 1 and not engine.runner.capture_next_graph()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["out of memory while capturing a graph of size 2: sizes [2, 1] run without graphs"]


def test_a_batch_beyond_the_largest_graph_runs_without_graphs(model: LoadedModel, expected: list[Answer]) -> None:
    device = FakeGraphDevice(graph_sizes=(2,))
    engine = start(model, device)
    assert ask(engine) == expected
    assert device.num_captures == 1


def test_a_failed_capture_is_repeated_after_cached_memory_is_released(
    model: LoadedModel, expected: list[Answer]
) -> None:
    class DeviceWithCachedMemory(FakeGraphDevice):
        def release_cached_memory(self) -> None:
            self.max_graphs = 3

    device = DeviceWithCachedMemory(graph_sizes=(1, 2, 8), max_graphs=1)
    assert ask(start(model, device)) == expected
    assert device.num_captures == 3
