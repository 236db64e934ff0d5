"""Where the body of a request ends: after Content-Length bytes, or where its chunks end.

Takes bytes from the front of a buffer, exactly up to the end of the body, so that the next request begins there. Keeps
no content. https://www.rfc-editor.org/rfc/rfc9112#section-6
"""

import re
from typing import Protocol

from services.shim.http.refusal import Refused, chunk_framing, malformed

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")


class Framing(Protocol):
    """`complete`: all bytes of the body were taken. `left`: content bytes still to come; None: unknown."""

    complete: bool
    left: int | None

    def take(self, buffer: bytearray) -> bytes:
        """Removes what belongs to the body from the front of `buffer`; returns the content in it.

        Raises Refused for framing that is wrong or too large.
        """


class LengthFraming:
    """A body of `length` bytes."""

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
        self.left: int | None = None
        self._limit = limit
        self._excess = 0  # bytes of framing above those of content
        self._chunk_left = 0  # content of the present chunk still to come
        self._scanned = 0  # bytes of the buffer without the end of a line
        self._expect = self._size_line

    def take(self, buffer: bytearray) -> bytes:
        parts: list[bytes] = []
        while buffer and not self.complete:
            if self._chunk_left:
                parts.append(take(buffer, self._chunk_left))
                self._chunk_left -= len(parts[-1])
                self._excess = max(0, self._excess - len(parts[-1]))
            elif (line := self._line(buffer)) is not None:
                self._expect(line)
            else:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line(self, buffer: bytearray) -> bytes | None:
        """Removes the next line; returns it without its end, None if it is incomplete."""
        end = buffer.find(b"\r\n", self._scanned)
        self._scanned = max(0, len(buffer) - 1) if end < 0 else 0
        if self._excess + (len(buffer) if end < 0 else end + 2) > self._limit:
            raise Refused(chunk_framing(self._limit))
        if end < 0:
            return None
        self._excess += end + 2
        return take(buffer, end + 2)[:-2]

    def _size_line(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise Refused(malformed("the request's body has a chunk without a valid size"))
        self._chunk_left = int(found[1], 16)
        self._expect = self._end_of_chunk if self._chunk_left else self._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line:
            raise Refused(malformed("a chunk of the request's body is longer than its size"))
        self._expect = self._size_line

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
