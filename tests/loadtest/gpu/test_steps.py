"""The checks of steps run to their end on a CPU: a tiny model through Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch

from loadtest.gpu import engines, steps
from loadtest.gpu.ahead import run_steps
from loadtest.gpu.engines import SIZES, engine_for, release
from loadtest.gpu.steps import Case, add, checks
from loadtest.gpu.table import Check, Note

CPU = torch.device("cpu")
COMMON = "ms, tokens_per_s, wait_share, host_ms, launch_ms"
STEP = f"small form, nothing is timed on a CPU: {COMMON}, share, limit_ms, profile, goals"


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    yield Case(engine_for(CPU, "0.6B", True), CPU, "0.6B", True)
    release()


@pytest.mark.long
def test_the_small_forms_run_to_their_end() -> None:
    found = checks(CPU, ["0.6B"], (1, 256), True)
    assert {check.name: check.run() for check in found} == {
        "0.6B decode, 1 running": STEP,
        "0.6B decode, 256 running": STEP,
        "0.6B prefill": STEP,
        "0.6B steady arrivals": f"small form, nothing is timed on a CPU: {COMMON}, goals",
        "0.6B 50 requests at once and one by one": (
            "small form, nothing is timed on a CPU: tokens_per_s, one_by_one_tokens_per_s, times, goals"
        ),
    }
    other = checks(CPU, ["8B"], (32,), False)
    assert {check.name: check.run() for check in other} == {
        "8B decode, 32 running, not batch-invariant": STEP,
        "8B prefill, not batch-invariant": STEP,
    }
    assert list(engines._held) == [("8B", False)]  # one engine at a time
    release()


def test_every_engine_is_started_once() -> None:
    names = [check.name for check in checks(torch.device("cuda"), ["0.6B", "8B"], (1, 32, 256), True)]
    assert [name.split()[0] for name in names] == ["0.6B"] * 6 + ["8B"] * 5
    assert all(isinstance(check, Check) and check.alone for check in checks(torch.device("cuda"), ["8B"], (1,), False))


def test_all_requests_decode_in_every_timed_step(case: Case) -> None:
    """As many tokens as the row counts: none of the requests ends before."""
    load, running = case.workload, SIZES["cpu"].max_num_seqs
    detail = steps.decode(case, count=256)
    answers = list(case.engine.answers.values())[-running:]
    assert {len(answer.token_ids) for answer in answers} == {2 * load.steps + 4 * load.profiled_steps}
    assert detail.data["tokens_per_s"] == pytest.approx(running * 1000 / detail.data["ms"])
    assert set(detail.data["limit_ms"]) == {"products", "attention", "pointwise", "head"}
    assert set(detail.data["goals"]) == {"goal 60%", "goal wait below 1%"}
    assert isinstance(detail, Note)  # an interpreter reaches no goal


def test_requests_arrive_one_every_few_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    monkeypatch.setattr(steps, "add", lambda engine, *what: (added.append(len(engine.answers)), add(engine, *what)))
    before = len(case.engine.answers)
    steps.arrivals(case)
    count = case.workload.arrivals[0]
    assert added == list(range(before, before + 2 * count))


def test_a_callback_is_called_before_each_step_is_planned(case: Case) -> None:
    called: list[int] = []

    def arrive(step: int) -> None:
        called.append(step)
        if step == 0:
            add(case.engine, 1, 4, 3)

    ran = run_steps(case.engine, before_each=arrive)
    assert called[: ran.steps] == list(range(ran.steps)) and ran.steps == 3
    assert 0 < ran.launches <= ran.host <= ran.wall
