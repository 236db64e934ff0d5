"""The simple keywords of JSON Schema: what value each has, and the form in which llguidance takes it.

llguidance reads numbers as floats. Bounds beyond MAX_BOUND are moved to it, so that every answer stays valid. Maximum
counts above MAX_COUNT are no bound for an answer.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from services.tokenizer.structured.formats import FORMATS
from services.tokenizer.structured.regex import search_regex
from services.tokenizer.structured.schema_place import Place

MAX_COUNT = 1_000_000
MAX_BOUND = 2**53 - 1  # larger bounds are not exact as floats
MIN_MAGNITUDE = 1e-15  # of a number other than 0
SIGNIFICANT_DIGITS = 15  # that a number may have, which llguidance reads as a float
MAX_MULTIPLE = 10_000  # of multipleOf without its decimal point: llguidance has a state for each remainder
MAX_DIGITS = 10  # of multipleOf after its decimal point, or of a power of ten
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
# The direction in which an exclusive bound moves, its keyword, and those of the other bound.
_BOUNDS = (
    (1, "exclusiveMinimum", ("maximum", "exclusiveMaximum")),
    (-1, "exclusiveMaximum", ("minimum", "exclusiveMinimum")),
)

Read = Callable[[Any, str, Place], Any]
DROPPED = object()  # the keyword has no effect


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_minimum_count(value: Any, keyword: str, place: Place) -> Any:
    count = _count(value, keyword, place)
    if count > MAX_COUNT:
        raise place.error(f'"{keyword}" is larger than {MAX_COUNT}')
    return count or DROPPED


def read_maximum_count(value: Any, keyword: str, place: Place) -> Any:
    count = _count(value, keyword, place)
    return DROPPED if count > MAX_COUNT else count


def _count(value: Any, keyword: str, place: Place) -> int:
    if not is_number(value) or value != value or value < 0 or value == math.inf or value != int(value):
        raise place.error(f'"{keyword}" must be a whole number of at least 0')
    return int(value)


def read_bound(value: Any, keyword: str, place: Place) -> Any:
    number = finite(value, keyword, place)
    is_lower = "inimum" in keyword
    if abs(number) <= MAX_BOUND:
        return number
    if (number > 0) == is_lower:
        raise place.error(f'"{keyword}" is beyond what is supported, {-MAX_BOUND} to {MAX_BOUND}')
    return -MAX_BOUND if is_lower else MAX_BOUND


def separate_bounds(node: dict[str, Any], is_part: bool) -> None:
    """Moves an exclusive bound that is a whole number by the smallest step, where the other bound is less than 1 away.

    There llguidance allows the whole number itself. `is_part`: the other bound may be in another schema.
    """
    if node.get("type") == "integer":
        return
    for sign, bound, others in _BOUNDS:
        value = node.get(bound)
        if value is None or value != int(value):
            continue
        step = float(f"1e{max(len(str(abs(int(value)))), 1) - SIGNIFICANT_DIGITS}")
        is_near = any(other in node and 0 < sign * (node[other] - value) < 1 for other in others)
        if step < 1 and (is_near or is_part):
            node[bound] = float(f"{value + sign * step:.{SIGNIFICANT_DIGITS}g}")


def read_multiple(value: Any, keyword: str, place: Place) -> Any:
    number = finite(value, keyword, place)
    if number <= 0:
        raise place.error(f'"{keyword}" must be larger than 0')
    if not are_few_remainders([number]):
        message = f'"{keyword}" is supported up to {MAX_MULTIPLE}, powers of ten, and {MAX_DIGITS} decimal places'
        raise place.error(message)
    return number


def are_few_remainders(multiples: Iterable[float]) -> bool:
    """Returns whether llguidance can divide by all of these at once: by their least common multiple."""
    exact = [Fraction(repr(number)) for number in multiples]
    for digits in range(MAX_DIGITS + 1):
        scaled = [number * 10**digits for number in exact]
        if all(number.denominator == 1 for number in scaled):
            common = math.lcm(*(number.numerator for number in scaled))
            return common <= MAX_MULTIPLE or (common <= 10**MAX_DIGITS and common == 10 ** (len(str(common)) - 1))
    return False


def finite(value: Any, keyword: str, place: Place) -> Any:
    if not is_number(value) or value != value or value in (math.inf, -math.inf):
        raise place.error(f'"{keyword}" must be a number')
    if 0 < abs(value) < MIN_MAGNITUDE:
        raise place.error(f'a number in "{keyword}" is too small; what is supported is 0, or {MIN_MAGNITUDE} and more')
    if isinstance(value, float) and float(f"{value:.{SIGNIFICANT_DIGITS}g}") != value:
        raise place.error(f'a number in "{keyword}" has more than {SIGNIFICANT_DIGITS} digits')
    return value


def read_types(value: Any, keyword: str, place: Place) -> Any:
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not types or any(name not in TYPES for name in types):
        raise place.error(f'"type" must be one of {", ".join(TYPES)}, or a list of them')
    if len(types) == 1:
        return types[0]
    return [name for name in dict.fromkeys(types) if name != "integer" or "number" not in types]


def read_names(value: Any, keyword: str, place: Place) -> Any:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise place.error(f'"{keyword}" must be a list of names')
    return list(dict.fromkeys(value)) or DROPPED


def read_pattern(value: Any, keyword: str, place: Place) -> Any:
    if not isinstance(value, str):
        raise place.error(f'"{keyword}" must be a regular expression')
    return search_regex(value, place.where, (place / keyword).shown)


def read_constants(value: Any, keyword: str, place: Place) -> Any:
    if not isinstance(value, list) or not value:
        raise place.error(f'"{keyword}" must be a list with at least one value')
    return [read_constant(item, keyword, place) for item in value]


def read_constant(value: Any, keyword: str, place: Place) -> Any:
    """Returns the value with its numbers in a form that llguidance takes exactly."""
    if isinstance(value, list):
        return [read_constant(item, keyword, place) for item in value]
    if isinstance(value, dict):
        return {name: read_constant(item, keyword, place) for name, item in value.items()}
    if not is_number(value):
        return value
    number = finite(value, keyword, place)
    if abs(number) > MAX_BOUND:
        raise place.error(f'a number in "{keyword}" is beyond what is supported, {-MAX_BOUND} to {MAX_BOUND}')
    return int(number) if number == int(number) else number


READERS: dict[str, Read] = {
    "type": read_types,
    "const": read_constant,
    "enum": read_constants,
    "required": read_names,
    "minProperties": read_minimum_count,
    "maxProperties": read_maximum_count,
    "minItems": read_minimum_count,
    "maxItems": read_maximum_count,
    "minLength": read_minimum_count,
    "maxLength": read_maximum_count,
    "pattern": read_pattern,
    "minimum": read_bound,
    "maximum": read_bound,
    "exclusiveMinimum": read_bound,
    "exclusiveMaximum": read_bound,
    "multipleOf": read_multiple,
}


def read_format(value: Any, node: dict[str, Any], place: Place, ignored: list[str]) -> Any:
    """Returns the format if it can be enforced. Others are annotations, as JSON Schema has it; `ignored` names them."""
    if not isinstance(value, str):
        raise place.error('"format" must be a text')
    if value in FORMATS:
        return value
    types = node.get("type", "string")
    if types == "string" or (isinstance(types, list) and "string" in types):
        ignored.append(f"{place.shown}: format")
    return DROPPED
