"""The ends of bodies: exact for every split, strict, and bounded."""

import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.shim.http.framing import ChunkFraming, Framing, LengthFraming
from services.shim.http.refusal import Refused

LIMIT = 1024
NEXT = b"GET / HTTP/1.1\r\n"  # behind the body: of the next request
BYTES = st.binary(max_size=60)
EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b' ; a="\t x"', b"  "])


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def read(framing: Framing, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Returns the content, and what is left behind the body."""
    buffer, content = bytearray(), b""
    for piece in pieces:
        buffer += piece
        content += framing.take(buffer) if not framing.complete else b""
        while framing.has_more and not framing.complete:
            content += framing.take(buffer)
    return content, bytes(buffer)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body in chunks, and its content."""
    parts = draw(st.lists(BYTES.filter(len), max_size=8))
    text = b"".join(b"%x%s\r\n%s\r\n" % (len(part), draw(EXTENSIONS), part) for part in parts)
    trailers = draw(st.lists(st.sampled_from([b"A: b\r\n", b"x-y:\r\n", b"C: \xff\r\n"]), max_size=3))
    return b"".join([text, b"000"[: draw(st.integers(1, 3))], draw(EXTENSIONS), b"\r\n", *trailers, b"\r\n"]), b"".join(
        parts
    )


@given(chunked(), st.lists(st.integers(0, 1000), max_size=20))
def test_any_split_of_chunks_has_the_same_content(body: tuple[bytes, bytes], cuts: list[int]) -> None:
    text, content = body
    framing = ChunkFraming(LIMIT)
    assert read(framing, split(text + NEXT, cuts)) == (content, NEXT)
    assert framing.complete


@given(BYTES, st.lists(st.integers(0, 1000), max_size=20))
def test_any_split_of_a_length_has_the_same_content(content: bytes, cuts: list[int]) -> None:
    framing = LengthFraming(len(content))
    assert read(framing, split(content + NEXT, cuts)) == (content, NEXT)
    assert framing.complete and framing.left == 0


@given(
    st.lists(st.sampled_from([b"1\r\n", b"a\r\n", b";" * 90, b"0\r\n", b"A: b\r\n", b"\r", b"\n"]), max_size=60),
    st.data(),
)
def test_what_is_refused_does_not_depend_on_the_split(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)

    def outcome(pieces: list[bytes]) -> object:
        try:
            return read(ChunkFraming(200), pieces)
        except Refused as refused:
            return refused.refusal.reason

    whole = outcome([text])
    assert outcome(split(text, data.draw(st.lists(st.integers(0, 1000), max_size=9)))) == whole
    assert outcome([bytes([one]) for one in text]) == whole


@pytest.mark.parametrize(
    "text",
    [
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"-3\r\n",
        b"0x3\r\n",
        b"+3\r\n",
        b" 3\r\n",
        b"\r\n",
        b"g\r\n",
        b"3 3\r\n",
        b"3;a\x00\r\n",
        b"3;a\nb\r\n",
        b"1" * 16 + b"\r\n",
        b"0\r\nno trailer\r\n",
        b"0\r\n folded: a\r\n",
        b"0\r\nA: b\nC: d\r\n",
    ],
)
def test_other_framing_is_refused(text: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read(ChunkFraming(LIMIT), [text + b"\r\n"])
    assert (caught.value.refusal.status, caught.value.refusal.reason) == (400, "malformed")


@pytest.mark.parametrize(
    "text",
    [
        b"1;" + b"x" * 2000,  # an extension without an end
        b"".join(b"1;%s\r\nx\r\n" % (b"e" * 100) for _ in range(20)),
        b"1\r\nx\r\n" * 1000,
        b"0\r\n" + b"A: b\r\n" * 1000,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_framing_that_outweighs_the_content_is_refused(text: bytes, size: int) -> None:
    """CVE-2023-39326: each byte of content cost Go's server any number of bytes of extensions."""
    with pytest.raises(Refused) as caught:
        read(ChunkFraming(LIMIT), [text[at : at + size] for at in range(0, len(text), size)])
    assert (caught.value.refusal.status, caught.value.refusal.reason) == (413, "chunk_framing")


def test_chunks_of_some_bytes_pass() -> None:
    text = b"8\r\n01234567\r\n" * 10_000 + b"0\r\n\r\n"
    assert read(ChunkFraming(LIMIT), [text]) == (b"01234567" * 10_000, b"")


@pytest.mark.parametrize("taken", [b"", b"3\r\n", b"3\r\nabc", b"3\r\nabc\r\n", b"0\r\n", b"0\r\na:b\r\n"])
def test_chunk_framing_is_freed_with_its_request(taken: bytes) -> None:
    """Nothing in it refers to itself."""
    gc.disable()
    try:
        framing = ChunkFraming(LIMIT)
        framing.take(bytearray(taken))
        kept = weakref.ref(framing)
        del framing
        assert kept() is None
    finally:
        gc.enable()
