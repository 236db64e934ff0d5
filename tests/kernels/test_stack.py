"""EagerStack carries out each operation on the places that it names."""

import torch
from torch import Tensor

from kernels import reference
from kernels.interface import AttentionInputs
from kernels.program import Activate, Add, Multiply, Norm, Operation, Place, Select
from kernels.stack import EagerRun, EagerStack
from kernels.torch_matrix import TorchMatrix
from kernels.torch_ops import TorchOps
from tests.kernels.cases import randn

CPU, OPS, EPS = torch.device("cpu"), TorchOps(), 1e-6
EMPTY = torch.empty(0)
INPUTS = AttentionInputs(EMPTY, EMPTY, EMPTY, EMPTY, 0, 0, 0)
RESIDUAL = randn(CPU, torch.float32, 5, 8)
WANTED = torch.tensor([1, 4])


def after(*operations: Operation) -> dict[Place, Tensor]:
    run = EagerRun(OPS, RESIDUAL.clone(), EMPTY, [], [INPUTS], WANTED)
    for operation in operations:
        run.do(operation)
    return run.activations


def random(*shape: int, seed: int = 1) -> Tensor:
    return randn(CPU, torch.float32, *shape, seed=seed)


def test_a_product_has_its_bias() -> None:
    weight, bias = random(6, 8), random(6, seed=2)
    found = after(Multiply(Place.RESIDUAL, Place.QKV, TorchMatrix(weight), bias))
    torch.testing.assert_close(found[Place.QKV], RESIDUAL @ weight.T + bias)


def test_an_add_changes_the_residual_and_a_norm_with_one_reads_the_sum() -> None:
    weight, norm = random(8, 8), random(8, seed=2)
    multiply = Multiply(Place.RESIDUAL, Place.HIDDEN, TorchMatrix(weight))
    apart = after(multiply, Add(0.5), Norm(Place.RESIDUAL, Place.NORMED, norm, None, EPS))
    at_once = after(multiply, Norm(Place.RESIDUAL, Place.NORMED, norm, None, EPS, adds=0.5))
    total = RESIDUAL + 0.5 * RESIDUAL @ weight.T
    for found in (apart, at_once):
        torch.testing.assert_close(found[Place.RESIDUAL], total)
        torch.testing.assert_close(found[Place.NORMED], reference.norm(total, norm, None, EPS, False))


def test_a_norm_of_parts_leaves_other_columns_as_they_are() -> None:
    weight = random(2, 3)
    found = after(Norm(Place.RESIDUAL, Place.RESIDUAL, weight, None, EPS, centred=True, first=1, groups=2))
    expected = RESIDUAL.clone()
    for group in range(2):
        columns = slice(1 + 3 * group, 4 + 3 * group)
        expected[:, columns] = reference.norm(RESIDUAL[:, columns].contiguous(), weight[group], None, EPS, True)
    torch.testing.assert_close(found[Place.RESIDUAL], expected)


def test_only_the_wanted_rows_of_the_named_places_stay() -> None:
    found = after(Norm(Place.RESIDUAL, Place.NORMED, random(8), None, EPS), Select((Place.RESIDUAL,)))
    assert torch.equal(found[Place.RESIDUAL], RESIDUAL[WANTED]) and len(found[Place.NORMED]) == len(RESIDUAL)


def test_the_result_is_what_the_last_norm_wrote() -> None:
    weight, norm = random(12, 8), random(8, seed=2)
    down = random(8, 6, seed=3)
    stack = EagerStack(
        OPS,
        [
            Select((Place.RESIDUAL,)),
            Multiply(Place.RESIDUAL, Place.INTERMEDIATE, TorchMatrix(weight)),
            Activate("silu", gated=True),
            Multiply(Place.ACTIVATED, Place.HIDDEN, TorchMatrix(down)),
            Norm(Place.RESIDUAL, Place.NORMED, norm, None, EPS, adds=1.0),
        ],
    )
    rows = RESIDUAL[WANTED]
    inner = reference.activate(rows @ weight.T, "silu", True)
    expected = reference.norm(rows + inner @ down.T, norm, None, EPS, False)
    torch.testing.assert_close(stack(RESIDUAL.clone(), EMPTY, [], INPUTS, WANTED), expected)
