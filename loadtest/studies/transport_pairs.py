"""`python -m loadtest.studies.transport_pairs OLD_TREE NEW_TREE`: CPU time per token and per
request of two checkouts, in paired runs.

Runs `tandem bench transport` of both in turn. For each process it prints the geometric mean of new / old with its 95%
confidence interval, absolute and relative to the client's time. The client does the same work in both, so its time
shows the machine's speed at that moment. Run nothing else meanwhile.
"""

import argparse
import math
import statistics
import subprocess
import sys
from pathlib import Path

PROCESSES = (
    "worker",
    "engine",
    "tokenizer",
    "shim",
    "client",
    "engine/req",
    "tokenizer/req",
    "shim/req",
)  # the last columns
COMPARED = tuple(name for name in PROCESSES if name not in ("worker", "client"))
Row = dict[str, float]


def measure(tree: Path, *args: str) -> Row:
    """Runs one benchmark in `tree`. Returns CPU µs per token and request by process, and the median latency in ms."""
    command = [sys.executable, "-m", "services.cli", "bench", "transport", *args]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    cells = done.stdout.splitlines()[-1].split()
    return dict(zip(PROCESSES, map(float, cells[-len(PROCESSES) :]), strict=True)) | {"p50 ms": float(cells[4])}


def t_quantile(df: int) -> float:
    """Returns the 97.5% quantile of Student's t; error below 0.01 for df >= 5. Abramowitz and Stegun, 26.7.5."""
    z = statistics.NormalDist().inv_cdf(0.975)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def summary(ratios: list[float]) -> str:
    """Returns the geometric mean and its 95% confidence interval as text; with fewer than 6 ratios only the mean."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 6:
        return f"{math.exp(mean):.3f} (no interval: fewer than 6 pairs)"
    half = t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old_tree", type=Path)
    parser.add_argument("new_tree", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--num-streams", default="64")
    parser.add_argument("--step-ms", default="20")
    parser.add_argument("--num-tokens", default="300")
    parser.add_argument("--num-requests", default="1000")
    parser.add_argument("--tcp", action="store_true", help="run NEW_TREE over TCP with TLS and CURVE")
    args = parser.parse_args()
    load = [f"--num-streams={args.num_streams}", f"--step-ms={args.step_ms}", f"--num-tokens={args.num_tokens}"]
    load.append(f"--num-requests={args.num_requests}")
    runs = {"old": (args.old_tree, *load), "new": (args.new_tree, *load, *(["--tcp"] if args.tcp else []))}
    found: dict[str, list[Row]] = {name: [] for name in runs}
    for pair in range(args.pairs):
        for name in sorted(runs, reverse=pair % 2 == 0):  # old and new take turns to run first
            found[name].append(measure(*runs[name]))
    pairs = list(zip(found["old"], found["new"], strict=True))
    print(f"new / old, {len(pairs)} pairs: CPU time per token or request; the same, each relative to the client's")
    for name in COMPARED:
        plain = summary([new[name] / old[name] for old, new in pairs])
        relative = summary([new[name] / new["client"] * old["client"] / old[name] for old, new in pairs])
        mean = statistics.mean(new[name] for _, new in pairs)
        print(f"{name:13} {plain}, {mean:.1f} µs   {relative}")
    for name in ("client", "p50 ms"):
        print(f"{name:13} {summary([new[name] / old[name] for old, new in pairs])}")


if __name__ == "__main__":
    main()
