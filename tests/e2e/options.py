"""Helpers for the tests of options: requests, model cards, pids, and the servers' kernel variants."""

from pathlib import Path
from typing import Any

import pytest

from kernels.cpu.library import runnable_variants
from tests.e2e.harness import Server

OTHER_KERNELS = ("avx2", "portable")  # not the fastest on most machines


def needs_kernels(variant: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        variant not in runnable_variants(), reason=f"this machine does not run the CPU kernels {variant}"
    )


# `kernels`: options of a server. Empty, or in a long run those that select a slower variant.
all_kernels = pytest.mark.parametrize(
    "kernels",
    [
        pytest.param((), id="default"),
        *(
            pytest.param((f"--cpu-kernels={one}",), id=one, marks=[pytest.mark.long, needs_kernels(one)])
            for one in OTHER_KERNELS
        ),
    ],
)


def tokens_of(server: Server, prompt: Any, **kwargs: Any) -> list[int]:
    token_ids: list[int] = server.complete(prompt, ignore_eos=True, **kwargs)["token_ids"]
    return token_ids


def model_cards(server: Server) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = server.get("/v1/models").json()["data"]
    return cards


def role_pid(server: Server, role: str) -> int:
    return next(pid for pid in server.pids if f"\0{role}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
