"""Each tool message finds its call: by id, by name or by order; the results stand in the order of the calls."""

import gc
import time
from typing import Any

import pytest

from services.tokenizer.call_links import linked

USER = {"role": "user", "content": "a"}


def calling(*calls: tuple[Any, str]) -> dict[str, Any]:
    """An assistant's message with calls of (id, name)."""
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": name}, **({"id": one} if one is not None else {})} for one, name in calls],
    }


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def results(*messages: dict[str, Any]) -> list[tuple[int, str, str | None, str | None]]:
    """Returns index, content, id and name of the tool messages, in their new order."""
    return [
        (index, message["content"], message.get("tool_call_id"), message.get("name"))
        for index, message in linked(enumerate(messages))
        if message["role"] == "tool"
    ]


def test_results_by_id_get_their_names_and_the_order_of_the_calls() -> None:
    found = results(calling(("x", "f"), ("y", "g")), result("2", tool_call_id="y"), result("1", tool_call_id="x"))
    assert found == [(2, "1", "x", "f"), (1, "2", "y", "g")]


def test_results_by_name_get_the_ids_of_open_calls() -> None:
    found = results(
        calling(("x", "f"), ("y", "g"), ("z", "f")),
        result("2", name="g"),
        result("1", name="f"),
        result("3", name="f"),
    )
    assert found == [(2, "1", "x", "f"), (1, "2", "y", "g"), (3, "3", "z", "f")]


def test_results_without_either_follow_the_order() -> None:
    found = results(calling(("x", "f"), ("y", "g")), result("1"), result("2"), USER)
    assert found == [(1, "1", "x", "f"), (2, "2", "y", "g")]


def test_a_result_by_id_leaves_the_other_calls_open() -> None:
    found = results(calling(("x", "f"), ("y", "f")), result("2", tool_call_id="y"), result("1"), result("3"))
    assert found == [(2, "1", "x", "f"), (1, "2", "y", "f"), (3, "3", None, None)]


def test_its_own_name_stays() -> None:
    assert results(calling(("x", "f")), result("1", tool_call_id="x", name="other")) == [(1, "1", "x", "other")]


def test_calls_without_ids_get_nine_letters_and_digits() -> None:
    messages = [calling((None, "f"), ("", "g")), result("1"), result("2"), calling((None, "f")), result("3")]
    assert results(*messages) == [
        (1, "1", "call00000", "f"),
        (2, "2", "call00001", "g"),
        (4, "3", "call00002", "f"),
    ]
    ids = [call["id"] for _, message in linked(enumerate(messages)) for call in message.get("tool_calls", ())]
    assert ids == ["call00000", "call00001", "call00002"]


def test_a_late_result_still_finds_its_name_but_not_a_place() -> None:
    found = results(calling(("x", "f")), USER, calling(("y", "g")), result("1", tool_call_id="x"), result("2"))
    assert found == [(4, "2", "y", "g"), (3, "1", "x", "f")]


def test_results_of_unknown_calls_stay() -> None:
    assert results(USER, result("1", tool_call_id="q")) == [(1, "1", "q", None)]
    assert results(USER, result("1", name="f")) == [(1, "1", None, "f")]


@pytest.mark.parametrize("junk", [5, [], {}, "", None])
def test_ids_and_names_that_are_no_text_are_missing(junk: Any) -> None:
    assert results(calling(("x", "f")), result("1", tool_call_id=junk, name=junk)) == [(1, "1", "x", "f")]
    assert results(USER, result("1", tool_call_id=junk, name=junk)) == [(1, "1", None, None)]
    assert results(calling((junk, "f")), result("1")) == [(1, "1", "call00000", "f")]


def test_nothing_is_changed() -> None:
    messages = [calling((None, "f")), result("1")]
    before = [dict(message) for message in messages]
    linked(enumerate(messages))
    assert messages == before and "id" not in messages[0]["tool_calls"][0]


def test_the_time_grows_with_the_number_of_calls_alone() -> None:
    """Eight times as many calls take about eight times as long, not 64 times, as when each result looked for the first
    open call behind all that had been answered."""
    few, many = (min(seconds(count) for _ in range(3)) for count in (8_000, 64_000))
    assert many < 24 * few


def seconds(count: int) -> float:
    """Returns the CPU time to link `count` calls to their results."""
    messages = [calling(*[(f"c{index}", "f") for index in range(count)]), *[result("x")] * count]
    gc.disable()  # a collection's time grows with the objects of the whole test run
    try:
        began = time.process_time()
        assert linked(enumerate(messages))[-1][1]["tool_call_id"] == f"c{count - 1}"
        return time.process_time() - began
    finally:
        gc.enable()
