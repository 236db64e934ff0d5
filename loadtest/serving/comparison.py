"""Turns the rows of a comparison into medians and Markdown. Pure.

A row is one run: `round`, `server`, `workload`, `foreign_cpu` (other processes' share of the machine's CPU time),
`server_ended`, and the numbers of loadtest.serving.report. Ratios divide medians by those of the second server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadtest.serving import report
from loadtest.serving.cases import CASES
from loadtest.serving.report import Numbers
from loadtest.serving.server import Command

MAX_FOREIGN_CPU = 0.05
_LATENCIES = ("mean_ttft_ms", "mean_tpot_ms")
_HEAD = ("workload", "server", "tok/s", "ratio", "TTFT ms", "ratio", "TPOT ms", "ratio", "runs", "foreign CPU")
MARK = "†"


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest value of one number over the counted runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """One server under one workload. Counted are the valid runs without other load; if there are none, all valid runs.
    A spread is None if no counted run has the number."""

    workload: str
    server: str
    speed: Spread | None  # tokens per second: output, or input and output, as the workload says
    ttft: Spread | None  # ms
    tpot: Spread | None  # ms
    runs: int
    counted: int
    disturbed: bool  # other load in a counted run: there was no undisturbed one
    foreign_cpu: float  # the highest of the counted runs


def faults(row: Numbers) -> list[str]:
    """Returns why this run is invalid; [] if it is valid."""
    ended = [f"the server ended {row['server_ended']}"] if row["server_ended"] else []
    return report.faults(row) + ended


def disturbed(row: Numbers) -> bool:
    """Returns whether other processes used more than MAX_FOREIGN_CPU of the machine's CPU time during the run."""
    return bool(row["foreign_cpu"] > MAX_FOREIGN_CPU)


def summaries(rows: Sequence[Numbers]) -> list[Summary]:
    """Returns a summary for each workload and server, grouped by workload, in the order of their first runs."""
    keys = dict.fromkeys((row["workload"], row["server"]) for row in rows)
    workloads = dict.fromkeys(workload for workload, _ in keys)
    return [_summary(rows, *key) for workload in workloads for key in keys if key[0] == workload]


def _summary(rows: Sequence[Numbers], workload: str, server: str) -> Summary:
    all_runs = [row for row in rows if (row["workload"], row["server"]) == (workload, server)]
    valid = [row for row in all_runs if not faults(row)]
    counted = [row for row in valid if not disturbed(row)] or valid
    speed, ttft, tpot = (_spread(counted, name) for name in (CASES[workload].speed, *_LATENCIES))
    worst = max((row["foreign_cpu"] for row in counted), default=0.0)
    return Summary(
        workload, server, speed, ttft, tpot, len(all_runs), len(counted), any(map(disturbed, counted)), worst
    )


def _spread(rows: Sequence[Numbers], name: str) -> Spread | None:
    values = [row[name] for row in rows if row[name] is not None]
    return Spread(median(values), min(values), max(values)) if values else None


def markdown(rows: Sequence[Numbers], servers: Sequence[Command], machine: str, date: str) -> str:
    """Returns the comparison as a Markdown document. `machine` describes the machine in one line."""
    found = summaries(rows)
    baseline = servers[1].label if len(servers) > 1 else None
    bases = {one.workload: one for one in found if one.server == baseline}
    lines = [
        f"# {' and '.join(server.label for server in servers)}",
        "",
        f"{date}. {machine}.",
        "",
        *(f"- {server.label}: `{server.line}`" for server in servers),
        "",
        _line(_HEAD),
        _line(["---", "---", *["--:"] * (len(_HEAD) - 2)]),
        *(_line(_cells(one, bases.get(one.workload))) for one in found),
        "",
        "Medians of the counted runs (lowest to highest)."
        + (f" Ratios are to {baseline}." if baseline else "")
        + f" Runs in which other processes used more than {MAX_FOREIGN_CPU:.0%} of the CPU time count only if all "
        f"runs of that server and workload are such runs; they are marked {MARK}. Workloads:",
        "",
        *(
            f"- {name}: {CASES[name].description}{_counted_tokens(name)}"
            for name in dict.fromkeys(one.workload for one in found)
        ),
    ]
    if wrong := [(row, why) for row in rows for why in faults(row)]:
        lines += ["", "Invalid runs:", ""]
        lines += [f"- round {row['round']}, {row['server']}, {row['workload']}: {why}" for row, why in wrong]
    return "\n".join(lines) + "\n"


def _counted_tokens(workload: str) -> str:
    return "; tok/s of input and output" if CASES[workload].speed == "total_token_throughput" else ""


def _cells(one: Summary, base: Summary | None) -> list[str]:
    cells = [one.workload, one.server]
    for name in ("speed", "ttft", "tpot"):
        spread, other = getattr(one, name), getattr(base, name, None)
        cells.append(_shown(spread))
        cells.append(f"{spread.median / other.median:.2f}" if spread and other and other.median else "-")
    mark = MARK if one.disturbed else ""
    return [*cells, f"{one.counted} of {one.runs}{mark}", f"{one.foreign_cpu:.1%}"]


def _shown(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
