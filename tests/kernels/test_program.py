import torch

from kernels.program import Activate, Add, Norm, Place, fused

NORM = Norm(Place.RESIDUAL, Place.NORMED, torch.ones(2), None, 1e-6)
HEAD_NORM = Norm(Place.QKV, Place.QKV, torch.ones(2), None, 1e-6)
OTHER = Activate("silu", gated=True)


def test_an_add_becomes_a_part_of_the_norm_behind_it() -> None:
    result = fused([NORM, Add(0.5), NORM, OTHER, Add()])
    assert [type(each) for each in result] == [Norm, Norm, Activate, Add]
    assert [each.adds for each in result if isinstance(each, Norm)] == [None, 0.5]


def test_an_add_stays_before_what_reads_something_else() -> None:
    assert fused([Add(), HEAD_NORM, Add(), Add(), OTHER]) == [Add(), HEAD_NORM, Add(), Add(), OTHER]
