"""thinking_token_budget: which positions are forced, against an oracle over whole outputs; each row alone and among
others; a state that steps have advanced equals one that a resume makes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.logits.interface import LogitsRows
from services.worker.logits.thinking_budget import ThinkingBudgets
from tests.worker.sample_rows import FIRST_SLOT, Row, adjusted, applied, logits_rows, new_requests, row, sampled

VOCAB = 6
INF = float("inf")
CPU = torch.device("cpu")
START, END = [1, 2], [3, 4, 5]

IDS = st.integers(0, 3)  # few, so that markers appear and overlap
OUTPUTS = st.lists(IDS, min_size=20, max_size=20)
BUDGETS = st.tuples(st.integers(0, 4), st.lists(IDS, max_size=3), st.lists(IDS, min_size=1, max_size=4), st.booleans())
Budget = tuple[int, list[int], list[int], bool]


def oracle(output: list[int], budget: Budget) -> int | None:
    """Returns the id that is forced after `output`; None: any may follow."""
    max_tokens, start, end, is_open = budget
    section: list[int] = []
    for token_id in output:
        section.append(token_id)
        marker = end if is_open else start
        if marker and section[-len(marker) :] == marker:
            is_open, section = not is_open, []
    if not is_open or len(section) < max_tokens:
        return None
    sizes = range(min(len(section) + 1, len(end)))
    return end[max(size for size in sizes if section[len(section) - size :] == end[:size])]


def forced_by(logits: torch.Tensor, changed: torch.Tensor) -> int | None:
    """Returns the id that one row is forced to; asserts that it is unchanged if there is none."""
    if torch.equal(logits, changed):
        return None
    (possible,) = (changed != -INF).nonzero().flatten().tolist()
    return int(possible)


def forced_after(output: list[int], *budget: object) -> int | None:
    logits = torch.ones(1, VOCAB)
    (changed,) = applied(ThinkingBudgets, logits, [row([1, 2], output, thinking=budget)])
    return forced_by(logits[0], changed)


def free_run(length: int, budget: Budget) -> list[int]:
    """Returns an output that is 0 wherever it may be."""
    output: list[int] = []
    while len(output) < length:
        output.append(forced_after(output, *budget) or 0)
    return output


def test_the_end_is_forced_id_by_id_after_the_budget_and_the_row_is_free_then() -> None:
    assert free_run(9, (4, START, END, True)) == [0, 0, 0, 0, 3, 4, 5, 0, 0]


def test_a_budget_of_zero_forces_the_end_at_once() -> None:
    assert free_run(5, (0, START, END, True)) == [3, 4, 5, 0, 0]
    assert forced_after([0, 1, 2], 0, START, END) == 3


def test_only_a_start_in_the_output_opens_a_section_that_the_prompt_leaves_closed() -> None:
    assert free_run(9, (0, START, END, False)) == [0] * 9  # the prompt ends with START
    assert forced_after([1, 0, 2, 0, 0], 1, START, END) is None
    assert forced_after([0, 1, 2], 1, START, END) is None
    assert forced_after([0, 1, 2, 0], 1, START, END) == 3


def test_each_section_has_its_own_budget() -> None:
    assert forced_after([0, 0, *END, 0, 1, 2, 0], 2, START, END, True) is None
    assert forced_after([0, 0, *END, 0, 1, 2, 0, 0], 2, START, END, True) == 3


def test_a_start_within_a_section_begins_nothing() -> None:
    assert forced_after([0, 1, 2, 0], 4, START, END, True) == 3


def test_an_end_that_the_model_has_begun_is_completed() -> None:
    assert forced_after([0, 3], 2, START, END, True) == 4
    assert forced_after([0, 3, 4], 3, START, END, True) == 5
    assert forced_after([3, 3], 2, START, END, True) == 4
    assert forced_after([3, 0], 2, START, END, True) == 3
    assert forced_after([3, 4], 3, START, END, True) is None, "it may go on otherwise while there is a budget"


def test_an_end_that_began_before_the_section_does_not_count() -> None:
    assert forced_after([0, 1, 3], 0, [1, 3], [3, 4], False) == 3


def test_without_start_ids_only_the_prompt_begins_reasoning() -> None:
    assert free_run(5, (1, [], [5], False)) == [0] * 5
    assert free_run(5, (1, [], [5], True)) == [0, 5, 0, 0, 0]


def test_the_longest_markers() -> None:
    marker = [0] * 63 + [1]
    assert forced_after([*marker, *[2] * 7], 8, marker, marker) is None
    assert forced_after([*marker, *[2] * 8], 8, marker, marker) == 0
    assert forced_after([*marker, *[2] * 8, *[0] * 63], 8, marker, marker) == 1
    assert forced_after([*marker, *[2] * 8, *marker], 0, marker, marker) is None


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.lists(IDS, max_size=30), BUDGETS), min_size=1, max_size=5))
def test_a_resume_after_any_output_forces_what_the_oracle_says(requests: list[tuple[list[int], Budget]]) -> None:
    logits = torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(3))
    changed = applied(ThinkingBudgets, logits, [row([1, 2], output, thinking=one) for output, one in requests])
    for before, after, (output, one) in zip(logits, changed, requests, strict=True):
        assert forced_by(before, after) == oracle(output, one)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(OUTPUTS, BUDGETS), min_size=1, max_size=4), st.integers(0, 20))
def test_steps_and_a_preemption_keep_the_state_of_the_tokens(
    requests: list[tuple[list[int], Budget]], preempted_at: int
) -> None:
    """What is forced is not followed, so that every state is reached."""
    processor = ThinkingBudgets(FIRST_SLOT + len(requests), VOCAB, CPU)
    logits = torch.ones(len(requests), VOCAB)
    for length in range(21):
        rows = [row([1, 2], tokens[:length], thinking=one) for tokens, one in requests]
        if length in (0, preempted_at):
            for request in new_requests(rows):
                processor.add(request)
        changed = logits.clone()
        processor.apply(changed, np.arange(len(rows)), logits_rows(rows))
        found = [forced_by(before, after) for before, after in zip(logits, changed, strict=True)]
        assert found == [oracle(tokens[:length], one) for tokens, one in requests], length


def test_rows_without_a_budget_keep_their_bits() -> None:
    logits = torch.tensor([[-0.0, 1.5, -INF, 3e38]]).repeat(5, 1)
    full = {"thinking": (0, [], [2], True)}
    rows = [row(), row(output=[1], **full), row(output=[2]), row(output=[1], **full), row()]  # type: ignore[arg-type]
    changed = applied(ThinkingBudgets, logits, rows)
    for index in (0, 2, 4):
        assert torch.equal(changed[index].view(torch.int32), logits[index].view(torch.int32))
    for index in (1, 3):
        assert changed[index].tolist() == [-INF, -INF, 0.0, -INF], "a masked id is possible again"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_forced_row_is_drawn_without_a_fault_where_everything_is_masked(temperature: float) -> None:
    rows = [row(allowed=[3], bad_words=[[3]], temperature=temperature, top_k=1, top_p=0.1, min_p=0.9,
                thinking=(0, [], [2], True))]  # fmt: skip
    result = sampled(torch.zeros(1, VOCAB), rows)
    assert (result.token_ids.tolist(), result.faults.tolist()) == ([2], [0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_a_penalty_has_spoilt_still_fails(temperature: float) -> None:
    rows = [row(output=[1], repetition_penalty=1e-45, temperature=temperature, thinking=(0, [], [2], True))]
    assert sampled(torch.ones(1, VOCAB), rows).faults.tolist() == [3]
    assert adjusted(torch.ones(1, VOCAB), rows).isnan().all(), "whichever token a kernel draws"


def test_a_slot_forgets_the_budget_of_its_last_request() -> None:
    processor = ThinkingBudgets(FIRST_SLOT + 1, VOCAB, CPU)
    last: list[Row] = [row(output=[3], thinking=(0, START, END, True)), row(output=[3])]
    selected = []
    for one in last:
        (request,) = new_requests([one])
        processor.add(request)
        rows: LogitsRows = logits_rows([one])
        selected.append(processor.selects(rows).tolist())
    assert selected == [[True], [False]]
