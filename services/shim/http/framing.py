"""Where the body of a request ends: after Content-Length bytes, or where its chunks end.

Takes bytes from the front of a buffer, exactly up to the end of the body, so that the next request begins there. Keeps
no content. https://www.rfc-editor.org/rfc/rfc9112#section-6
"""

import re
from typing import Protocol

from services.shim.http.refusal import Refused, chunk_framing, malformed

MAX_STEPS = 1500  # lines and contents of chunks that one call takes: about 1 ms
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")


class Framing(Protocol):
    """`complete`: all bytes of the body were taken. `left`: content bytes still to come; None: unknown. `has_more`: the
    last call left bytes that it could have taken, so that others have their turn."""

    complete: bool
    left: int | None
    has_more: bool

    def take(self, buffer: bytearray) -> bytes:
        """Removes what belongs to the body from the front of `buffer`; returns the content in it.

        Raises Refused for framing that is wrong or too large.
        """


class LengthFraming:
    """A body of `length` bytes."""

    has_more = False

    def __init__(self, length: int) -> None:
        self.left: int | None = length
        self._left = length
        self.complete = length == 0

    def take(self, buffer: bytearray) -> bytes:
        content = take(buffer, self._left)
        self.left = self._left = self._left - len(content)
        self.complete = self._left == 0
        return content


class ChunkFraming:
    """A body in chunks. Sizes, extensions and trailers may have `limit` bytes more than the content.

    So a body in chunks of one byte, or with long extensions, is refused before it costs much (CVE-2023-39326 is that
    of Go's server). Extensions and trailers are dropped.
    """

    def __init__(self, limit: int) -> None:
        self.complete = False
        self.has_more = False
        self.left: int | None = None
        self._limit = limit
        self._excess = 0  # bytes of framing above those of content
        self._chunk_left = 0  # content of the present chunk still to come
        self._scanned = 0  # bytes of the present line that have no end of it
        self._expect = ChunkFraming._size_line  # unbound: no cycle

    def take(self, buffer: bytearray) -> bytes:
        parts: list[bytes] = []
        at = 0
        self.has_more = False
        with memoryview(buffer) as view:
            for _ in range(MAX_STEPS):
                if self.complete or at == len(buffer):
                    break
                start = at
                if self._chunk_left:
                    at = min(at + self._chunk_left, len(buffer))
                    parts.append(bytes(view[start:at]))
                    self._chunk_left -= at - start
                    self._excess = max(0, self._excess - (at - start))
                elif (end := self._end_of_line(buffer, at)) >= 0:
                    at = end + 2
                    self._expect(self, bytes(view[start:end]))
                else:
                    break
            else:
                self.has_more = True
        del buffer[:at]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _end_of_line(self, buffer: bytearray, start: int) -> int:
        """Returns where the line at `start` ends; -1 if it is incomplete. Raises Refused if it is too long."""
        end = buffer.find(b"\r\n", start + self._scanned)
        size = (len(buffer) if end < 0 else end + 2) - start
        if self._excess + size > self._limit:
            raise Refused(chunk_framing(self._limit))
        if end < 0:
            self._scanned = size - 1
        else:
            self._scanned = 0
            self._excess += size
        return end

    def _size_line(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise Refused(malformed("the request's body has a chunk without a valid size"))
        self._chunk_left = int(found[1], 16)
        self._expect = ChunkFraming._end_of_chunk if self._chunk_left else ChunkFraming._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line:
            raise Refused(malformed("a chunk of the request's body is longer than its size"))
        self._expect = ChunkFraming._size_line

    def _trailer(self, line: bytes) -> None:
        if line and _TRAILER.fullmatch(line) is None:
            raise Refused(malformed("the request has a malformed trailer"))
        self.complete = not line


def take(buffer: bytearray, size: int) -> bytes:
    """Removes and returns the first `size` bytes, or all if there are fewer."""
    if size >= len(buffer):
        taken = bytes(buffer)
        buffer.clear()
        return taken
    with memoryview(buffer) as view:
        taken = bytes(view[:size])
    del buffer[:size]
    return taken
