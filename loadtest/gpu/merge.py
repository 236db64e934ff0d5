"""Merges the rows of several calls into one page of docs/benchmarks, and their choices of tiles into kernels/gpu/tiles.

    python -m loadtest.gpu.merge DIR...    # the --out folders of the calls, the earliest first

A row of a later call replaces the earlier one of the same name, unless the later one was not run.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.gpu import tile_table
from loadtest.gpu import tiles
from loadtest.gpu.machine import as_text
from loadtest.gpu.packing import CACHE_ROW, EARLIER_ROW, FILES_ROW
from loadtest.gpu.report import ROWS_FILE

PAGES, TABLES = Path("docs", "benchmarks"), Path("kernels", "gpu", "tiles")
OF_THE_RUN = ("machine", EARLIER_ROW, CACHE_ROW, FILES_ROW)  # first words of rows that are no measurement


@dataclass(frozen=True)
class Run:
    """One call: its first line (report.py), and its rows in the order of its table."""

    about: dict[str, Any]
    rows: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Writes page and tables and prints their paths. Exits with 2 for a folder without rows."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.merge", description="Merges the rows of calls.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the page (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the tables (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        runs = [read(folder / ROWS_FILE) for folder in args.folders]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    path = args.pages / f"{date_of(runs[-1])}-gpu.md"
    args.pages.mkdir(parents=True, exist_ok=True)
    path.write_text(page(runs, merged(runs)))
    print(path)
    table = tiles.table_of(merged(run for run in runs if run.about["device"] == "cuda"))
    if table:
        args.tables.mkdir(parents=True, exist_ok=True)
        target = tile_table.path_of(table["card"], args.tables)
        target.write_text(text_of(table))
        print(target)
    return 0


def read(path: Path) -> Run:
    """Returns the run in a rows.jsonl. Raises OSError if it cannot be read, ValueError if it is no such file."""
    first, *rows = (json.loads(line) for line in path.read_text().splitlines())
    if "machine" not in first:
        raise ValueError(f"{path}: the first line names no machine: the call did not start")
    return Run(first, sorted(rows, key=lambda row: int(row["index"])))


def merged(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Returns one row for each name, in the order in which the names first appear."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for row in run.rows:
            if row["result"] != "not run" or row["name"] not in found:
                found[row["name"]] = row
    return list(found.values())


def date_of(run: Run) -> str:
    return str(run.about["date"])[:10]


def page(runs: Sequence[Run], rows: Sequence[dict[str, Any]]) -> str:
    """Returns the page: a heading with date, machines, versions and commits, a count of results, a table of all rows
    but those that were not run, and the names of the latter."""
    machines = dict.fromkeys(as_text(run.about) for run in runs)
    calls = dict.fromkeys(f"{run.about['call']} (commit {run.about['commit'] or 'unknown'})" for run in runs)
    done = [row for row in rows if row["result"] != "not run" and not row["name"].startswith(OF_THE_RUN)]
    absent = [row for row in rows if row["result"] == "not run"]
    results = [row["result"] for row in done]
    counts = ", ".join(f"{results.count(result)} {result}" for result in ("ok", "note", "FAIL"))
    lines = [
        f"# On a GPU, {date_of(runs[-1])}",
        "",
        *(f"- {machine}" for machine in machines),
        f"- calls: {', '.join(calls)}; [gpu.md](../gpu.md) has the commands and the meaning of the rows",
        f"- {counts}, {len(absent)} not run",
        "",
        "| check | result | detail |",
        "|---|---|---|",
        *(f"| {cell(row['name'])} | {row['result']} | {cell(row['detail'])} |" for row in done),
    ]
    if absent:
        lines += ["", "Not run:", "", *(f"- {row['name']}: {row['detail']}" for row in absent)]
    return "\n".join(lines) + "\n"


def text_of(table: dict[str, Any]) -> str:
    """Returns a table of tiles as JSON with a line for each product."""
    products = ",\n".join(f"  {json.dumps(key)}: {json.dumps(entries)}" for key, entries in table["products"].items())
    others = json.dumps({key: value for key, value in table.items() if key != "products"}, indent=1)
    return f'{others.removesuffix("}").rstrip()},\n "products": {{\n{products}\n }}\n}}\n'


def cell(text: str) -> str:
    """Returns the text as a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    raise SystemExit(main())
