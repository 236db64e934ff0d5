"""Faults that other servers had with tool calls, planted into the parser: the properties find each one.

Sources: vLLM's issues 43221, 41967, 28806, 52469 and 30204. Most of them lost what came together in one delta.
"""

from collections.abc import Callable

import pytest

from services.rpc.pieces import REASONING, TOOL_CALL, TOOL_NAME, Piece
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.output_parser import OutputParser
from tests.tokenizer.parsing.formats.test_glm45 import FORM as GLM45
from tests.tokenizer.parsing.formats.test_hermes import FORM as HERMES
from tests.tokenizer.parsing.formats.test_openai import FORM as OPENAI
from tests.tokenizer.parsing.forms import RandomAnswer, RandomCall
from tests.tokenizer.parsing.properties import check_answer

ANSWERS = [
    RandomAnswer("I think", "I look", [RandomCall("f", {"a": 1}), RandomCall("g", {})], "Bye <"),
    RandomAnswer("I think", "", [RandomCall("f", {"a": "x"})], ""),
    RandomAnswer("", "a < b <too", [], ""),
]


def check_all() -> None:
    for form in (HERMES, GLM45, OPENAI):
        for answer in ANSWERS:
            for seed in range(8):
                check_answer(form, answer, seed, as_text=False)
                if form is HERMES:
                    check_answer(form, answer, seed, as_text=True)


def reasoning_lost_before_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a delta has besides the beginning of a call is dropped."""
    take = PieceWriter.take

    def without_reasoning(self: PieceWriter) -> list[Piece]:
        pieces = take(self)
        begins = any(kind == TOOL_CALL for kind, _ in pieces)
        return [piece for piece in pieces if not (begins and piece[0] == REASONING)]

    monkeypatch.setattr(PieceWriter, "take", without_reasoning)


def arguments_lost_with_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments in the delta that has the call's name are dropped."""
    add = PieceWriter.add_arguments

    def not_behind_the_name(self: PieceWriter, text: str) -> None:
        if not self._pieces or self._pieces[-1][0] != TOOL_NAME:
            add(self, text)

    monkeypatch.setattr(PieceWriter, "add_arguments", not_behind_the_name)


def calls_without_parameters_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    end = PieceWriter.end_call

    def only_with_arguments(self: PieceWriter, *, broken: bool = False) -> None:
        if any(self._arguments):
            end(self, broken=broken)
        else:
            self.in_call = False

    monkeypatch.setattr(PieceWriter, "end_call", only_with_arguments)


def held_text_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What might have begun a marker is dropped when it does not."""

    def drop(self: OutputParser) -> None:
        self._held = ""

    monkeypatch.setattr(OutputParser, "_release_held", drop)


def tail_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer's end writes nothing."""

    def nothing(self: OutputParser, *, stopped: bool) -> None:
        pass

    monkeypatch.setattr(OutputParser, "finish", nothing)


def text_behind_a_marker_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a delta, what stands behind its first marker is dropped."""
    read = OutputParser._read_until_marker

    def first_only(self: OutputParser, text: str, add: Callable[[str], None]) -> str:
        read(self, text, add)
        return ""

    monkeypatch.setattr(OutputParser, "_read_until_marker", first_only)


def test_without_a_fault_nothing_is_found() -> None:
    check_all()


@pytest.mark.parametrize(
    "plant",
    [
        reasoning_lost_before_a_call,
        arguments_lost_with_the_name,
        calls_without_parameters_lost,
        held_text_lost,
        tail_lost,
        text_behind_a_marker_lost,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all()
