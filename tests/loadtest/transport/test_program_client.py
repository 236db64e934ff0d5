"""The benchmark's client of the gRPC edges: real runs, and its check of the tokens."""

import pytest

from loadtest.transport.program_client import check_order
from tests.loadtest.transport.test_command import rows

LETTERS = [40, 41, 42]


def test_a_token_that_is_lost_repeated_or_swapped_is_seen() -> None:
    check_order([41, 42, 40, 41], LETTERS)
    for wrong in ([41, 40], [41, 41], [40, 41, 41], [42, 41, 40]):
        with pytest.raises(ValueError, match="lost, repeated or swapped"):
            check_order(wrong, LETTERS)


@pytest.mark.parametrize(
    ("client", "idle"), [("text", "shim"), pytest.param("tokens", "tokenizer", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("edges", [[], pytest.param(["--tcp"], marks=pytest.mark.long)], ids=["Unix sockets", "TLS"])
def test_every_token_arrives_over_grpc(client: str, idle: str, edges: list[str]) -> None:
    (row,) = rows("--num-streams=16", "--num-tokens=100", "--step-ms=10", f"--client={client}", *edges)
    assert row["per_chunk"] >= 1 and 0 < row["p50"] <= row["p99"]
    assert row["engine"] > 0 and row["client"] > 0
    assert row[idle] < row["engine"], "the request does not pass it"
