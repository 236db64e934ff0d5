"""Pieces of an answer merge with their neighbours of the same kind, wherever messages divide them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.pieces import Piece, add_pieces, kinds_of, of_content, unpacked

pieces = st.lists(st.tuples(st.integers(0, 2), st.text("ab", min_size=1, max_size=2)), max_size=8)


def test_neighbours_of_the_same_kind_merge_and_others_never_do() -> None:
    found = [(0, "a")]
    add_pieces(found, [(0, "b"), (1, "c"), (0, "d"), (0, "e")])
    assert found == [(0, "ab"), (1, "c"), (0, "de")]


@given(whole=pieces, cuts=st.lists(st.integers(0, 8), max_size=3))
def test_the_pieces_do_not_depend_on_how_they_are_divided(whole: list[Piece], cuts: list[int]) -> None:
    expected: list[Piece] = []
    add_pieces(expected, whole)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(expected))
    bounds = [0, *sorted(cuts), len(whole)]
    found: list[Piece] = []
    for begin, end in itertools.pairwise(bounds):
        part: list[Piece] = []
        add_pieces(part, whole[begin:end])
        add_pieces(found, part)
    assert found == expected


@given(pieces)
def test_the_wires_form_gives_the_same_pieces(whole: list[Piece]) -> None:
    assert unpacked([text for _, text in whole], kinds_of(whole)) == whole


def test_content_alone_has_no_kinds_on_the_wire() -> None:
    assert (of_content("a"), of_content("")) == ([(0, "a")], [])
    assert (kinds_of([(0, "a"), (0, "b")]), kinds_of([(0, "a"), (1, "b")])) == (b"", b"\x00\x01")


def test_a_wrong_number_of_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        unpacked(["a", "b"], b"\x00")
