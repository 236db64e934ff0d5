"""Reads the columns of a tokenizer's message, row by row: a row is a choice with new tokens or text."""

from collections.abc import Iterator, Sequence

from services.rpc.call import StreamBroken
from services.rpc.columns import ITEM_BYTES, unpack_u32
from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece, unpacked

NO_LOGPROBS: Sequence[text_pb2.TokenLogprobs] = ()


# handle, index of the first token in the answer, column of token ids (u32), pieces, logprobs; a tuple is fast to make
TextRow = tuple[int, int, bytes, list[Piece], Sequence[text_pb2.TokenLogprobs]]


def rows_of(batch: text_pb2.TextBatch) -> Iterator[TextRow]:
    """Yields the rows of a message.

    Raises StreamBroken if columns contradict each other, ValueError if one has an incomplete item or another length.
    """
    handles = unpack_u32(batch.handles)
    if not handles:
        return
    counts, piece_counts = unpack_u32(batch.counts), unpack_u32(batch.piece_counts)
    logprob_counts = unpack_u32(batch.logprob_counts) or [0] * len(handles)
    token_ids, logprobs = batch.token_ids, batch.logprobs
    pieces = unpacked(batch.pieces, batch.piece_kinds)
    if sum(counts) * ITEM_BYTES != len(token_ids):
        raise StreamBroken("token_ids: their number differs from the sum of counts")
    if sum(piece_counts) != len(pieces) or sum(logprob_counts) != len(logprobs):
        raise StreamBroken("pieces or logprobs: their number differs from the sum of their counts")
    token_at = piece_at = logprob_at = 0
    columns = zip(handles, unpack_u32(batch.start_indices), counts, piece_counts, logprob_counts, strict=True)
    for handle, start_index, count, num_pieces, num_logprobs in columns:
        token_end, piece_end = token_at + count * ITEM_BYTES, piece_at + num_pieces
        yield (
            handle,
            start_index,
            token_ids[token_at:token_end],
            pieces[piece_at:piece_end],
            logprobs[logprob_at : logprob_at + num_logprobs] if num_logprobs else NO_LOGPROBS,
        )
        token_at, piece_at, logprob_at = token_end, piece_end, logprob_at + num_logprobs
