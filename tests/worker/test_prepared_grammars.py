"""Prepared grammars by handle and slot: kept through preemption, dropped once, and wrong plans are noticed."""

import queue
import threading

import numpy as np
import pytest

from engine_core.step_plan import BadMessage, NewRequest, SamplingParams, StepPlan, pack_i32
from services.grammar.matcher import Matcher
from services.worker.grammar_rows import GrammarRows
from services.worker.prepared_grammars import PreparedGrammars
from tests.grammar.vocabularies import demo_tokens, ids_of


def plan(*new: NewRequest, dropped: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(1, 1, None, [], list(new), b"", b"", b"", b"", b"", [b""], [b""], dropped_grammars=list(dropped))


def request(handle: int, slot: int, output: str = "", has_grammar: bool = True) -> NewRequest:
    column = pack_i32(ids_of(output)) if output else b""
    sampling = SamplingParams(max_tokens=5)
    return NewRequest(handle, slot, pack_i32([1]), column, [], sampling, 0, 0, has_grammar=has_grammar)


def matcher(grammar: str = "start: /[0-9]+/", output: str = "") -> Matcher:
    made = Matcher(demo_tokens(), grammar)
    made.replay(ids_of(output) if output else [])
    return made


def rows(grammars: PreparedGrammars, *slots: int) -> GrammarRows | None:
    return grammars.rows(np.array(slots))


def test_a_step_has_the_rows_of_its_slots_with_a_grammar() -> None:
    grammars = PreparedGrammars(4)
    grammars.add(7, matcher(), 0)
    grammars.add(8, matcher(), 0)
    grammars.apply(plan(request(7, 3), request(5, 0, has_grammar=False), request(8, 1)))
    found = rows(grammars, 0, 3, 1)
    assert found is not None
    assert found.rows.tolist() == [1, 2] and [one.handle for one in found.grammars] == [7, 8]
    assert rows(grammars, 0) is None
    grammars.apply(plan(request(6, 3, has_grammar=False)))
    assert rows(grammars, 3) is None, "the slot has another request"


def test_a_preempted_request_finds_its_grammar_at_its_newest_token() -> None:
    grammars = PreparedGrammars(4)
    grammars.add(7, matcher(), 0)
    grammars.apply(plan(request(7, 3)))
    before = rows(grammars, 3)
    assert before is not None
    before.advance(np.array(ids_of("4")), np.zeros(1, dtype=np.int8))
    grammars.apply(plan(request(7, 0, "4")))
    after = rows(grammars, 0)
    assert after is not None and after.grammars == before.grammars


def test_a_resumed_request_begins_after_its_output() -> None:
    grammars = PreparedGrammars(1)
    grammars.add(7, matcher(output="42"), len(ids_of("42")))
    grammars.apply(plan(request(7, 0, "42")))
    assert rows(grammars, 0) is not None


@pytest.mark.parametrize(
    ("grammar", "output", "planned", "error"),
    [
        ("", "", "", "the grammar of request 7 is not prepared"),
        ("start: /[0-9]+/", "", "4", "request 7 has 1 output tokens, its grammar 0"),
        ("start: /[0-9]+/", "4", "", "request 7 has 0 output tokens, its grammar 1"),
        ('start: "4"', "4", "4", "request 7 runs again, but its grammar has ended"),
    ],
    ids=["not prepared", "behind", "ahead", "ended"],
)
def test_a_plan_that_contradicts_what_is_prepared_is_noticed(
    grammar: str, output: str, planned: str, error: str
) -> None:
    grammars = PreparedGrammars(1)
    if grammar:
        grammars.add(7, matcher(grammar, output), len(output))
    with pytest.raises(BadMessage, match=error):
        grammars.apply(plan(request(7, 0, planned)))


def test_a_grammar_is_kept_until_a_plan_drops_it() -> None:
    grammars = PreparedGrammars(1)
    grammars.add(7, matcher(), 0)
    grammars.apply(plan())
    assert len(grammars) == 1
    grammars.apply(plan(dropped=(7,)))
    assert len(grammars) == 0


def test_a_plan_that_drops_what_is_not_prepared_is_noticed() -> None:
    with pytest.raises(BadMessage, match="drops the grammar of request 7, which is not prepared"):
        PreparedGrammars(1).apply(plan(dropped=(7,)))


def test_grammars_are_added_and_dropped_from_two_threads() -> None:
    grammars, made, added = PreparedGrammars(1), matcher(), queue.SimpleQueue[int]()

    def add() -> None:
        for handle in range(3000):
            grammars.add(handle, made, 0)
            added.put(handle)

    thread = threading.Thread(target=add)
    thread.start()
    for _ in range(3000):
        grammars.apply(plan(dropped=(added.get(timeout=60),)))
    thread.join()
    assert len(grammars) == 0
