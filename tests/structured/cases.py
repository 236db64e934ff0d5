"""Forms of answers and the judges of what follows them: the suite's schemas, varied ones, expressions, grammars."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.rpc.generated import text_pb2
from tests.structured import judges
from tests.structured.judges import Judge
from tests.structured.texts import BALANCED, CHOICES, GRAMMARS, REGEXES, UNBOUNDED_REGEXES, is_balanced
from tests.structured.varied import varied_schemas

HERE = Path(__file__).parent
WRITTEN = HERE / "written.json"
SUITE = HERE / "suite"
NUM_BOUNDED, NUM_UNBOUNDED = 200, 60  # of the varied schemas; with the written ones 300


@dataclass(frozen=True)
class Case:
    """`form` is one field of `structured_outputs` and `value` its value. `bounded`: every answer comes to its end by
    itself. `prefix` judges an answer that was cut; None: only a matcher can."""

    name: str
    form: str
    value: Any
    judge: Judge
    bounded: bool
    prefix: Judge | None = None

    @property
    def structured(self) -> text_pb2.StructuredOutput:
        """The form as the tokenizer gets it."""
        made = text_pb2.StructuredOutput(strict=True, field=f"structured_outputs.{self.form}")
        match self.form:
            case "json":
                made.json_schema = json.dumps(self.value).encode()
            case "regex":
                made.regex = self.value
            case "choice":
                made.choices.texts.extend(self.value)
            case _:
                made.grammar = self.value
        return made


@dataclass(frozen=True)
class Group:
    """A schema of the suite with its `tests`: each has `data` and whether it is `valid`."""

    name: str
    schema: Any
    tests: list[dict[str, Any]]


def suite() -> Iterator[Group]:
    """Yields the suite's schemas, file by file."""
    for file in sorted(SUITE.glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield Group(f"{file.stem}: {group['description']}", group["schema"], group["tests"])


def _of_schema(name: str, schema: Any, bounded: bool) -> Case:
    return Case(name, "json", schema, judges.by_schema(schema), bounded)


def suite_cases() -> list[Case]:
    """Returns the suite's schemas as cases: most of them allow any JSON beside what they constrain."""
    return [_of_schema(group.name, group.schema, False) for group in suite()]


def schema_cases() -> list[Case]:
    """Returns 300 varied schemas: 40 written by hand or from the documents of OpenAI and vLLM, 260 of a seed."""
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    found = [_of_schema(one["name"], one["schema"], one["bounded"]) for one in written]
    for bounded, count in ((True, NUM_BOUNDED), (False, NUM_UNBOUNDED)):
        name = "varied, bounded" if bounded else "varied"
        found += [_of_schema(f"{name} {at}", one, bounded) for at, one in enumerate(varied_schemas(count, bounded))]
    return found


def text_cases() -> list[Case]:
    """Returns the regular expressions, choices and grammars."""
    found = [
        Case(f"regex {one}", "regex", one, judges.by_regex(one), one in REGEXES, judges.prefix_by_regex(one))
        for one in (*REGEXES, *UNBOUNDED_REGEXES)
    ]
    for one in CHOICES:
        name = f"choice {one[0]!r:.20}"
        found.append(Case(name, "choice", list(one), judges.by_choices(one), True, judges.prefix_by_choices(one)))
    for grammar, same, bounded in GRAMMARS:
        name = f"grammar {grammar.strip()[:30]!r}"
        found.append(Case(name, "grammar", grammar, judges.by_regex(same), bounded, judges.prefix_by_regex(same)))
    return found + [Case(f"grammar {one!r}", "grammar", one, is_balanced, False) for one in BALANCED]
