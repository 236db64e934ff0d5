"""What a call gets of an engine's message: each choice's new tokens, with their logprobs."""

from dataclasses import dataclass, field
from typing import Any

from services.rpc.columns import pack_f32, pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.tokenizer.engine_client import EngineCall, TokenLogprobColumns
from tests.tokenizer.parts import connected


@dataclass
class Listener:
    seen: list[Any] = field(default_factory=list)

    def accepted(self, handle: int, accepted: engine_pb2.Accepted) -> None: ...
    def ended(self, handle: int, terminal: engine_pb2.Terminal) -> None: ...

    def tokens(self, handle: int, start_index: int, token_ids: list[int], logprobs: TokenLogprobColumns) -> None:
        found = [logprobs.of_token(index) for index in range(len(token_ids))]
        self.seen.append((handle, start_index, token_ids, found))


async def test_a_row_that_repeats_tokens_brings_the_new_ones_alone() -> None:
    (client, engine), listener = connected(), Listener()
    choices = [pb.Choice(handle=handle, resumed_token_ids=pack_u32([70, 71])) for handle in (1, 2)]
    client.dispatcher.start(EngineCall(engine_pb2.Submit(choices=choices), listener))
    rows = [(1, 1, [71, 72, 73]), (9, 0, [5, 6]), (2, 2, [80])]  # handle 9 is unknown
    ids = [token_id for _, _, row in rows for token_id in row]
    step = engine_pb2.StepBatch(
        epoch=5,
        handles=pack_u32(handle for handle, _, _ in rows),
        start_indices=pack_u32(start for _, start, _ in rows),
        counts=pack_u32(len(row) for _, _, row in rows),
        logprob_widths=pack_u32([1, 1, 1]),
        token_ids=pack_u32(ids),
        logprob_token_ids=pack_u32(ids),
        logprobs=pack_f32(-token_id for token_id in ids),
    )
    client.receive(engine, engine_pb2.EngineUp(step=step))
    assert listener.seen == [
        (1, 2, [72, 73], [[(72, -72.0)], [(73, -73.0)]]),
        (2, 2, [80], [[(80, -80.0)]]),
    ]
