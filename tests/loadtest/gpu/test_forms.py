"""Attention with other pipeline depths and segments: the small form, a planted difference, one that does not fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from kernels.gpu.attention_tiling import Tiling
from loadtest.gpu import forms
from loadtest.gpu.attention import AttentionCase, attention_case, limit_us
from loadtest.gpu.forms import FORMS, checks, compile_form, measured

CPU = torch.device("cpu")


def test_the_small_form_runs_to_its_end() -> None:
    details = {check.name: check.run() for check in checks(CPU)}
    assert len(details) == 4 and set(details.values()) == {"small form, nothing is timed on a CPU: us, limit_us"}
    assert compile_form(CPU, "0.6B", 256, 5) == "2 of 2 fit the shared memory"


def test_a_gpu_compiles_each_form_in_checks_that_may_run_concurrently() -> None:
    found = checks(torch.device("cuda"))
    compiling = [check for check in found if not check.alone]
    assert len(compiling) == 2 * len(FORMS["cuda"]) and found[: len(compiling)] == compiling
    assert len(found) - len(compiling) == 2 * 13


def by_stages(monkeypatch: pytest.MonkeyPatch, attend: Any) -> None:
    right = AttentionCase.attend
    monkeypatch.setattr(AttentionCase, "attend", lambda self, tiling: attend(right(self, tiling), tiling))


def test_a_depth_with_other_bits_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    by_stages(monkeypatch, lambda out, tiling: out + (tiling.stages == 5))
    with pytest.raises(AssertionError, match="segments of 256, 5 stages: other bits"):
        measured(CPU, 16, *forms.SMALL[0])


def test_a_depth_that_does_not_fit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(out: Tensor, tiling: Tiling) -> Tensor:
        if tiling.stages == 5:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return out

    by_stages(monkeypatch, attend)
    detail = measured(CPU, 16, *forms.SMALL[1])
    assert detail.data["us"]["256/5"] is None and detail.data["us"]["256/3"] > 0
    assert "256/5: too much shared memory" in detail


def test_the_limit_of_attention_is_one_read_of_the_kv_or_the_operations() -> None:
    few, many = attention_case(CPU, 16, *forms.SMALL[0]), attention_case(CPU, 16, 1, 40, 0)
    rates = forms.limit_us.__globals__["limits"](CPU)
    kv = 2 * 2 * 41 * 16 * 2 / rates.memory
    assert limit_us(CPU, few) == pytest.approx(1e6 * max(kv, 4 * 2 * 41 * 32 / rates.matrix))
    assert limit_us(CPU, many) == pytest.approx(1e6 * max(2 * 40 * 16 * 2 / rates.memory, 4 * 820 * 32 / rates.matrix))
    assert replace(few.tiling, stages=9).segment == few.tiling.segment
