"""The limit of a step is the sum of its operations' limits; a missed goal makes a row a note."""

import pytest
import torch

from loadtest.gpu import steps
from loadtest.gpu.ideal import SHARES, Batch, Work, at_least, judged, product, step_seconds, times_as_fast, wait_below
from loadtest.gpu.limits import Limits
from loadtest.gpu.shapes import SHAPES
from loadtest.gpu.table import Measured, Note
from services.worker.models.description import Attention, Description, Layer, Mlp, Norm

LAYER = Layer(
    Attention(heads=4, kv_heads=2, head_dim=8, scale=1.0, rope=None), Mlp(size=96, activation="silu"), Norm(1e-6)
)
MODEL = Description(
    vocab_size=100, hidden_size=64, layers=(LAYER, LAYER), final_norm=Norm(1e-6), tied=True, dtype="bfloat16",
    max_length=64, default_length=64,
)  # fmt: skip
WEIGHTS = 64 * (4 + 2 * 2) * 8 + 4 * 8 * 64 + 3 * 96 * 64  # elements of a layer's matrices
ENDLESS = 1e300


def test_an_operation_takes_the_longer_of_its_bytes_and_its_operations() -> None:
    rates = Limits(read=50.0, copy=100.0, matrix=1000.0)
    assert Work(200, 1000).seconds(rates) == 2.0
    assert Work(200, 4000).seconds(rates) == 4.0
    assert product(3, 5, 7, itemsize=2, out_itemsize=4, weight_itemsize=1) == Work(
        5 * 7 + 3 * (7 * 2 + 5 * 4), 2 * 3 * 5 * 7
    )


def test_keys_and_pairs_are_those_that_the_mask_lets_see() -> None:
    batch = Batch(((3, 4), (1, 9), (5, 0)), sampled=2)
    assert batch.count == 9
    assert batch.keys == 7 + 10 + 5
    assert batch.pairs == (5 + 6 + 7) + 10 + (1 + 2 + 3 + 4 + 5)


def test_the_memory_limit_of_a_decode_step_is_weights_and_kv_and_few_rows() -> None:
    """By the memory rate alone: all bytes over the rate."""
    found = step_seconds(MODEL, 2, Batch(((1, 9), (1, 19)), sampled=2), Limits(1.0, 0.0, ENDLESS))
    rows = 2 * 2 * ((64 + 64) + (32 + 64) + (64 + 192) + (96 + 64))  # read and written by a layer's products
    assert found["products"] == 2 * (2 * WEIGHTS + rows)
    assert found["attention"] == 2 * 2 * (2 * (10 + 20) * 16 + 2 * 2 * 32)
    assert found["head"] == 2 * 64 * 100 + 2 * (2 * 64 + 4 * 100) + 4 * 2 * 100
    assert set(found) == {"products", "attention", "pointwise", "head"}


def test_the_matrix_limit_of_a_prompt_is_its_multiplications() -> None:
    """By the matrix rate alone. Behind the last attention only the sampled token is computed."""
    found = step_seconds(MODEL, 2, Batch(((20, 0),), sampled=1), Limits(ENDLESS, ENDLESS, 1.0))
    behind = WEIGHTS - 64 * 64
    assert found["products"] == pytest.approx(2 * (20 * WEIGHTS + 20 * 64 * 64 + behind))
    assert found["attention"] == pytest.approx(2 * 4 * 210 * 32)
    assert found["head"] == pytest.approx(2 * 64 * 100)
    assert found["pointwise"] == pytest.approx(0.0)


def test_a_missed_goal_makes_a_note_and_a_reached_one_does_not() -> None:
    reached = judged("5 ms", [at_least(0.7, 0.7), wait_below(0.009, 0.01)], ms=5.0)
    assert type(reached) is Measured and reached == "5 ms; goal 70%: reached; goal wait below 1%: reached"
    assert reached.data == {"ms": 5.0, "goals": {"goal 70%": True, "goal wait below 1%": True}}
    missed = judged("5 ms", [at_least(0.7, 0.7), times_as_fast(29.9, 30.0)])
    assert type(missed) is Note and missed == "5 ms; goal 70%: reached; goal 30 times: missed"
    assert type(judged("5 ms", [])) is Measured


def test_every_goal_belongs_to_a_row() -> None:
    rows = {check.name for check in steps.checks(torch.device("cuda"), list(SHAPES), (1, 32, 256), True)}
    assert {f"{shape} {what}" for shape, what in SHARES} < rows
