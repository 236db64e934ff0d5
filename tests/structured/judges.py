"""Whether an answer follows its form, by other programs than the one that enforced it: jsonschema and regex."""

import datetime
import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import jsonschema
import regex

Judge = Callable[[str], bool]

FORMATS = jsonschema.FormatChecker()
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DATE = r"\d{4}-\d{2}-\d{2}"


@FORMATS.checks("date")
def _is_date(value: object) -> bool:
    if not isinstance(value, str):
        return True
    if not re.fullmatch(_DATE, value):
        return False
    try:
        return bool(datetime.date.fromisoformat(value))
    except ValueError:
        return False


@FORMATS.checks("time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or re.fullmatch(_TIME, value) is not None


@FORMATS.checks("date-time")
def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return _is_date(value[:10]) and re.fullmatch(f"{_DATE}[Tt ]{_TIME}", value) is not None


def _multiple_of(_validator: Any, divisor: Any, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    """As jsonschema's own, but exact: 5.39 is a multiple of 0.0001."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and Fraction(str(value)) % Fraction(str(divisor)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {divisor}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple_of})


def by_schema(schema: Any) -> Judge:
    """Returns the judge of JSON that follows a schema, formats included."""
    validator = Validator(schema, format_checker=FORMATS)

    def judge(text: str) -> bool:
        try:
            value = json.loads(text)
        except ValueError:
            return False
        return bool(validator.is_valid(value))

    return judge


def by_regex(pattern: str) -> Judge:
    compiled = regex.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def prefix_by_regex(pattern: str) -> Judge:
    """Returns the judge of texts that may become a match."""
    compiled = regex.compile(pattern)
    return lambda text: compiled.fullmatch(text, partial=True) is not None


def by_choices(choices: tuple[str, ...]) -> Judge:
    return lambda text: text in choices


def prefix_by_choices(choices: tuple[str, ...]) -> Judge:
    return lambda text: any(choice.startswith(text) for choice in choices)
