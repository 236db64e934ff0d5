"""`make chaos`: faults from a seed under 200 mixed requests; every request must be answered, byte for byte as without.

`python -m tests.chaos --seed N --faults M --minutes 40 --out FILE` runs one part and appends its report to FILE;
`--sum FILE` adds parts up; `python -m tests.chaos soak --minutes 60` runs for long with one fault a minute, at one role
after the other, so that the processes of the others grow old; `--roles engine worker` spares all tokenizers for the
whole time, and `--roles tokenizer` engine and worker.
"""

import argparse
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import uvloop

from tests.chaos.part import VARIANTS, Plan, run_part
from tests.chaos.report import Report, total
from tests.chaos.schedule import ROLES
from tests.chaos.snapshots import probe_environment
from tests.e2e.harness import ALL_READY, SPARES, Server, wait_for

SOAK_VARIANT = "small KV cache"  # a large one makes the worker's memory grow until every block was used once
SOAK_PACE_SECONDS = 60.0
SOAK_WARM_SECONDS = 300.0


def run_on_own_server(variant: str, plan: Plan, log: Path | None = None) -> Report:
    """Starts a server, runs one part on it and returns the report. `log`: a file for the server's log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Server(SPARES, *VARIANTS[variant], env=probe_environment(folder)) as server:
            wait_for(lambda: ALL_READY in server.log, "the launcher has seen all processes ready")
            try:
                report = uvloop.run(run_part(server, folder, plan))
            finally:
                if log is not None:
                    log.write_text(server.log)
    report.parts = [f"{plan.seed} {variant}"]
    report.tracebacks = tracebacks(server.lines)
    report.pauses = {f"{variant}: {label}": counts for label, counts in report.pauses.items()}
    return report


def tracebacks(lines: list[str]) -> list[str]:
    """Returns the end of each traceback in a log."""
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return ["".join(lines[max(0, at - 1) : at + 30]) for at in starts][:5]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", nargs="?", choices=("part", "soak"), default="part")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--faults", type=int, default=400, help="faults of the part")
    parser.add_argument("--minutes", type=float, default=40.0, help="no fault comes later")
    parser.add_argument("--roles", nargs="+", choices=ROLES, help="that a soak strikes; default: all")
    parser.add_argument("--variant", choices=VARIANTS, help="of the server; default: by the seed")
    parser.add_argument("--out", type=Path, help="file that the report is appended to, as one line of JSON")
    parser.add_argument("--log", type=Path, help="file for the server's log")
    parser.add_argument("--sum", type=Path, help="prints the sum of the reports in this file, and runs nothing")
    args = parser.parse_args()
    if args.roles and args.form != "soak":
        parser.error("--roles is for a soak")
    report = total(args.sum.read_text().splitlines()) if args.sum else _run(args)
    print("\n".join(report.lines()))
    return 0 if report.clean else 1


def _run(args: argparse.Namespace) -> Report:
    soaks = args.form == "soak"
    variant = args.variant or (SOAK_VARIANT if soaks else list(VARIANTS)[args.seed % len(VARIANTS)])
    print(f"{args.form} --seed {args.seed} --faults {args.faults} --variant {variant!r}", flush=True)
    plan = Plan(args.seed, args.faults, args.minutes)
    if soaks:
        roles = tuple(args.roles or ROLES)
        per_role = max(1, int(args.minutes * 60 / SOAK_PACE_SECONDS / len(roles)))
        plan = replace(plan, pace=SOAK_PACE_SECONDS, roles=roles, per_role=per_role, warm_seconds=SOAK_WARM_SECONDS)
    report = run_on_own_server(variant, plan, args.log)
    if not soaks:
        report.growth = []  # too short for slopes
    if args.out:
        with args.out.open("a") as file:
            file.write(report.line() + "\n")
    return report


if __name__ == "__main__":
    sys.exit(main())
