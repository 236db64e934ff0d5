"""Reads a table of a format from a TOML or JSON file, and checks it: what passes can be followed by the parser."""

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from services.errors import Fatal
from services.tokenizer.parsing.check_table import check
from services.tokenizer.parsing.table import Table


def read_table(file: Path) -> Table:
    """Returns the table in a TOML or JSON file. Raises Fatal, naming the file and the place, for one that is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
        return table_of(json.loads(text) if file.suffix == ".json" else tomllib.loads(text))
    except (OSError, ValueError, RecursionError) as error:
        raise Fatal(f"{file} is not a table of a format: {error}") from error


def table_of(data: Any) -> Table:
    """Returns the table in plain values of TOML or JSON. Raises ValueError, naming the place, for one that is wrong."""
    try:
        table = msgspec.convert(data, Table)
    except msgspec.ValidationError as error:  # before msgspec 0.20 no ValueError
        raise ValueError(str(error)) from error
    check(table)
    return table
