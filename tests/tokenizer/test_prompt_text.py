"""A part of a prompt keeps its plain spans."""

import pytest

from services.tokenizer.prompt_text import PromptText


@pytest.mark.parametrize(
    ("start", "end", "spans"),
    [
        (0, 10, ((1, 3), (5, 8))),
        (2, 10, ((0, 1), (3, 6))),
        (3, 6, ((2, 3),)),
        (3, 5, ()),
        (8, 10, ()),
        (6, 7, ((0, 1),)),
    ],
)
def test_a_part(start: int, end: int, spans: tuple[tuple[int, int], ...]) -> None:
    prompt = PromptText("0123456789", ((1, 3), (5, 8)))
    assert prompt.part(start, end) == PromptText("0123456789"[start:end], spans)
