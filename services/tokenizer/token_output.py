"""One choice of an answer without text: its tokens pass as they are. It has the methods of ChoiceOutput.

Nothing is decoded, so such a token costs the tokenizer a fraction of what others do.
"""

from services.rpc.pieces import Piece
from services.tokenizer.choice_output import Released


class TokenOutput:
    """Nothing ends such a choice but the engine: it has neither stop strings nor calls."""

    stop_string = None
    is_over = False
    num_reasoning_tokens = 0
    num_calls = 0
    num_broken_calls = 0

    def __init__(self) -> None:
        self.num_tokens = 0

    def push(self, token_ids: list[int]) -> Released:
        self.num_tokens += len(token_ids)
        return Released(len(token_ids), [], [0] * len(token_ids))

    def flush(self, *, stopped: bool = False) -> list[Piece]:
        return []
