"""Stop strings against an oracle that sees the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.stop import StopMatcher

many = settings(max_examples=300, deadline=None, derandomize=True)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)
pieces = st.lists(st.text("abc", max_size=3), max_size=12)


def run(stop: list[str], texts: list[str], *, include: bool = False, exempt: int = 0) -> tuple[str, str | None]:
    """Returns the released text and the hit. No stop string may end in the first `exempt` texts."""
    matcher = StopMatcher(stop, include_in_output=include)
    text = "".join(matcher.push(piece, may_end=index >= exempt) for index, piece in enumerate(texts))
    return text + matcher.flush(), matcher.hit


def oracle(stop: list[str], texts: list[str], *, include: bool = False, exempt: int = 0) -> tuple[str, str | None]:
    """Returns the same as `run`, from the whole text after each piece."""
    num_exempt = len("".join(texts[:exempt]))
    for count in range(exempt, len(texts)):
        text = "".join(texts[: count + 1])
        places = range(len(text))
        found = [(p, -len(s), s) for s in stop for p in places if text.startswith(s, p) and p + len(s) > num_exempt]
        if found:
            place, length, hit = min(found)
            return text[: place - length if include else place], hit
    return "".join(texts), None


@many
@given(stop=stops, texts=pieces, include=st.booleans())
def test_released_is_the_text_up_to_the_first_stop_string(stop: list[str], texts: list[str], include: bool) -> None:
    assert run(stop, texts, include=include) == oracle(stop, texts, include=include)


@many
@given(stop=stops, texts=pieces, include=st.booleans(), exempt=st.integers(0, 12))
def test_no_stop_string_ends_where_none_may(stop: list[str], texts: list[str], include: bool, exempt: int) -> None:
    assert run(stop, texts, include=include, exempt=exempt) == oracle(stop, texts, include=include, exempt=exempt)


@many
@given(stop=stops, texts=pieces)
def test_only_the_start_of_a_stop_string_is_held_back(stop: list[str], texts: list[str]) -> None:
    matcher, out = StopMatcher(stop, include_in_output=False), ""
    for count, piece in enumerate(texts, start=1):
        out += matcher.push(piece)
        if matcher.hit is not None:
            return
        text = "".join(texts[:count])
        beginnings = (
            size for size in range(len(text) + 1) if any(s.startswith(text[len(text) - size :]) for s in stop)
        )
        assert out == text[: len(text) - max(beginnings)]


@many
@given(stop=stops, texts=pieces, after=pieces)
def test_text_after_a_hit_changes_nothing(stop: list[str], texts: list[str], after: list[str]) -> None:
    before = run(stop, texts)
    if before[1] is not None:
        assert run(stop, texts + after) == before


@many
@given(stop=stops, texts=pieces, after=pieces, include=st.booleans())
def test_released_text_never_changes(stop: list[str], texts: list[str], after: list[str], include: bool) -> None:
    matcher = StopMatcher(stop, include_in_output=include)
    out = "".join(map(matcher.push, texts))
    assert run(stop, texts + after, include=include)[0].startswith(out)


@pytest.mark.parametrize(
    ("stop", "texts", "expected"),
    [
        (["bc", "b"], ["abcd"], ("a", "bc")),  # both begin there: the longest
        (["c", "abc"], ["abcd"], ("", "abc")),  # the one that begins first
        (["bc", "abcd"], ["a", "b", "c", "d"], ("a", "bc")),  # the first that is complete
        (["aab"], ["aaa", "ab"], ("aa", "aab")),  # a beginning that overlaps itself
        (["\n\nUser:"], ["Fine.\n", "\nUs", "er", ": Hi"], ("Fine.", "\n\nUser:")),
        (["\n\nUser:"], ["Fine.\n", "\nUse", "less"], ("Fine.\n\nUseless", None)),
        ([], ["a", "b"], ("ab", None)),
    ],
)
def test_examples(stop: list[str], texts: list[str], expected: tuple[str, str | None]) -> None:
    assert run(stop, texts) == expected
    if expected[1] is not None:
        assert run(stop, texts, include=True) == (expected[0] + expected[1], expected[1])
