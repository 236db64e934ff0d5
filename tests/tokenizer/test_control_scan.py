"""Where strings hold control tokens and parts of them; the cost is linear in the string."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.control_scan import ControlScan
from services.tokenizer.template_texts import texts_of

some = settings(max_examples=300, deadline=None, derandomize=True, database=None)
TEXTS = ["<|a|>", "<|ab|>", "<think>", "</think>", "<<x>>", "[X]", "[XX]", "aba", "a b>"]
ANY = st.lists(
    st.sampled_from([*TEXTS, "<", "<|", "|>", ">", "a", "b", " ", "x", "[", "X", "]", "think"]), max_size=8
).map("".join)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("", []),
        ("hello [there] < x > | a", []),
        ("x<think>y", [(1, 8)]),
        ("x<think></think>y", [(1, 16)]),
        ("x<|ab|>y<|a|>", [(1, 7), (8, 13)]),
        ("ab|> x", [(0, 4)]),
        ("x <|", [(2, 4)]),
        (">x<", [(0, 1), (2, 3)]),
        ("think", []),
        ("x <th", [(2, 5)]),
        ("x <the", []),
        ("y <<x>> y", [(2, 7)]),
    ],
)
def test_whole_tokens_and_parts_at_both_ends(text: str, spans: list[tuple[int, int]]) -> None:
    assert ControlScan(one for one in TEXTS if one[0] not in "a").spans(text) == spans


@some
@given(before=ANY, text=ANY, after=ANY)
def test_what_is_found_breaks_every_token_that_the_string_has_a_part_of(before: str, text: str, after: str) -> None:
    """Also of one that begins before or ends after it."""
    spans = ControlScan(TEXTS).spans(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    covered = {len(before) + place for start, end in spans for place in range(start, end)}
    whole, first, last = before + text + after, len(before), len(before) + len(text)
    for token in TEXTS:
        place = whole.find(token)
        while place >= 0:
            inside = range(max(place, first), min(place + len(token), last))
            crosses_both = place < first and place + len(token) > last  # a middle: see `of_template`
            if inside and not crosses_both:
                assert covered & set(inside), (token, place)
            place = whole.find(token, place + 1)


def test_strings_that_a_template_completes_to_a_token() -> None:
    texts = texts_of("text <{{ a }}> more {{ '[' ~ b ~ '|>' if c == 'think' }}")
    scan = ControlScan(TEXTS).of_template(texts)
    assert scan.spans("/think") == [(0, 6)]
    assert scan.spans("think") == [], "the template looks for this name itself"
    assert scan.spans("|ab") == [(0, 3)] and scan.spans("|a|") == [(0, 3)]
    assert scan.spans("X") == [], "no literal begins with ]"
    assert scan.may_have('["other"]'), "a string without a token's end may be completed"


@pytest.mark.parametrize(
    "replaces", ["{{ a.replace('/no', '') }}", "{{ a | replace('/no', b) }}", "{{ a.replace(b, c) }}"]
)
def test_strings_with_a_text_that_a_template_replaces(replaces: str) -> None:
    scan = ControlScan(["<|end|>"]).of_template(texts_of(replaces))
    assert scan.spans("x <|e/nond|> x") == [(2, 3), (11, 12)]
    assert scan.spans("x <|end> x") == ([] if "/no" in replaces else [(2, 3), (7, 8)])
    assert ControlScan(["<a>"]).of_template(texts_of("{{ a.replace('<b>', '') }}")).spans("x<b>y<") == [(5, 6)]


def test_strings_in_another_case_where_a_template_changes_it() -> None:
    scan = ControlScan(["<|end|>"])
    for source, spans in (("{{ a | lower }}", [(1, 8)]), ("{{ a.lower() }}", [(1, 8)]), ("{{ a }}", [])):
        assert scan.of_template(texts_of(source)).spans("x<|END|>x") == spans


def test_parts_behind_whitespace_that_a_template_may_trim() -> None:
    assert ControlScan(["<|end|>"]).spans(" nd|> x <|e \n") == [(0, 5), (8, 13)]


@pytest.mark.parametrize(
    ("json_text", "may"),
    [
        ('["hello"]', False),
        ('["<"]', True),
        ('["\\u003cthink\\u003e"]', True),
        ('["h\\u00e9"]', True),
        ('["a\\nb"]', False),
        ('["<\\/think"]', True),
    ],
)
def test_json_texts_that_need_no_further_look(json_text: str, may: bool) -> None:
    assert ControlScan(["<think>", "</think>"]).may_have(json_text) == may
    assert ControlScan(["\n<x>"]).may_have('["a\\nb"]')
    assert not ControlScan([]).may_have('["<"]')


@pytest.mark.parametrize("part", ["<", ">", "<|im_end|>", "<unused12", "<unused12>", "> <", "a"])
def test_the_cost_is_linear(part: str) -> None:
    scan = ControlScan(["<|im_end|>", *(f"<unused{number}>" for number in range(6000))])
    text = part * (1_000_000 // len(part))

    def seconds(length: int) -> float:
        start = time.process_time()
        scan.spans(text[:length])
        return time.process_time() - start

    assert min(seconds(1_000_000) for _ in range(3)) < 0.5


def test_runs_of_a_character_as_tokens() -> None:
    scan = ControlScan("-" * length for length in range(1, 500))
    assert scan.spans(f"x{'-' * 700}y") == [(1, 701)]
