"""Pieces: the text of an answer, in the order in which its tokens released it. Each piece has text of one kind.

Neighbours of the same kind merge, others never do. So the pieces of an answer, joined, do not depend on how steps and
messages divide them. A tool call is a sequence of pieces: its id, its name, its arguments in parts, its end.
"""

from collections.abc import Iterable

from services.rpc.generated import text_pb2

CONTENT: int = text_pb2.PIECE_KIND_CONTENT
REASONING: int = text_pb2.PIECE_KIND_REASONING
TOOL_CALL: int = text_pb2.PIECE_KIND_TOOL_CALL
TOOL_NAME: int = text_pb2.PIECE_KIND_TOOL_NAME
TOOL_ARGUMENTS: int = text_pb2.PIECE_KIND_TOOL_ARGUMENTS
TOOL_CALL_END: int = text_pb2.PIECE_KIND_TOOL_CALL_END
# Its PieceKind, and its text, which is empty for TOOL_CALL_END only; a plain tuple is the fastest to make.
Piece = tuple[int, str]


def of_content(text: str) -> list[Piece]:
    """Returns the pieces of a text that is content: none if it is empty."""
    return [(CONTENT, text)] if text else []


def add_pieces(pieces: list[Piece], more: Iterable[Piece]) -> None:
    """Appends `more`, which follow `pieces` in the answer."""
    for kind, text in more:
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = (kind, pieces[-1][1] + text)
        else:
            pieces.append((kind, text))


def text_of(pieces: Iterable[Piece], kind: int = CONTENT) -> str:
    """Returns the text of all pieces of one kind, joined."""
    return "".join([text for one, text in pieces if one == kind])


def kinds_of(pieces: Iterable[Piece]) -> bytes:
    """Returns the wire's form of the kinds: one byte per piece, or none if all are content."""
    kinds = bytes([kind for kind, _ in pieces])
    return kinds if any(kinds) else b""


def unpacked(texts: Iterable[str], kinds: bytes) -> list[Piece]:
    """Returns the pieces of the wire's form. Raises ValueError if the numbers of texts and kinds differ."""
    if not kinds:
        return [(CONTENT, text) for text in texts]
    return list(zip(kinds, texts, strict=True))
