"""The built-in tables, by the names that select them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.tokenizer.parsing.read_table import read_table
from services.tokenizer.parsing.table import Table

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Catalog:
    """Tables by name: of tool calls, and of reasoning."""

    tools: Mapping[str, Table]
    reasoning: Mapping[str, Table]

    def with_table(self, table: Table) -> "Catalog":
        """Returns a catalog that has this table as well, in place of those with its names."""
        return Catalog(
            {**self.tools, **dict.fromkeys(table.tools, table)},
            {**self.reasoning, **dict.fromkeys(table.reasoning, table)},
        )


@functools.cache
def built_in() -> Catalog:
    """Returns the tables of tandem itself."""
    catalog = Catalog({}, {})
    for file in sorted(TABLES.glob("*.toml")):
        catalog = catalog.with_table(read_table(file))
    return catalog
