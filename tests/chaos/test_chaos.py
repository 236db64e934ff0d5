"""The short form of `make chaos`: faults under sixty requests, none refused, lost or different, no leak."""

import os
import random

from tests.chaos.__main__ import run_on_own_server
from tests.chaos.part import Plan

SEED = int(os.environ.get("TANDEM_CHAOS_SEED") or random.randrange(10**6))


def test_every_request_survives_faults() -> None:
    print(f"TANDEM_CHAOS_SEED={SEED}")
    plan = Plan(SEED, num_faults=6, minutes=0.5, num_cases=60, request_seconds=60.0)
    report = run_on_own_server("two tokenizers", plan)
    assert report.faults and report.requests["answered"] and report.quiet_points == 2
    assert report.clean, "\n".join(report.lines())
