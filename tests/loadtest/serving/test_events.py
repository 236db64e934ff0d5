"""Server-sent events are parsed, split at any byte."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadtest.serving.events import EventDecoder

LINE_ENDS = (b"\n", b"\r", b"\r\n")


def decode(*pieces: bytes) -> list[bytes]:
    decoder = EventDecoder()
    return [data for piece in pieces for data in decoder.feed(piece)]


@given(
    events=st.lists(
        st.lists(st.sampled_from([b"", b"a", b"{}", b" x", b"data: y", b"[DONE]"]), min_size=1), max_size=5
    ),
    end=st.sampled_from(LINE_ENDS),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_every_cut_gives_the_same_events(events: list[list[bytes]], end: bytes, cuts: list[int]) -> None:
    stream = b"\xef\xbb\xbf" + b"".join(
        b": comment" + end + b"".join(b"data: " + line + end for line in event) + b"event: x" + end * 2
        for event in events
    )
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert decode(*pieces) == [b"\n".join(event) for event in events]


def test_an_event_is_returned_with_its_last_byte() -> None:
    """Arrival times depend on it: after a carriage return, the parser must not wait for a newline."""
    for end in LINE_ENDS:
        decoder = EventDecoder()
        stream = b"data: 1" + end + end
        complete = [bool(decoder.feed(stream[at : at + 1])) for at in range(len(stream))]
        first = complete.index(True)
        assert first == len(stream) - 1 or (end == b"\r\n" and first == len(stream) - 2)


def test_lines_without_data_are_ignored() -> None:
    assert decode(b"id: 1\ndata\n\n: data: x\n\ndatax: 1\n\ndata:1\n\ndata: cut off") == [b"", b"1"]
