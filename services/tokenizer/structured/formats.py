"""The formats of texts that a grammar enforces: those written here as expressions, and those that llguidance has.

Dates and times follow RFC 3339, section 5.6, but for leap seconds, which most parsers refuse: every date is one of the
calendar, in the years 1 to 9999.
"""

from typing import Any

_MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # the multiples of four with two digits, but for 00
_DATE = f"({_YEAR}-({_MONTHS})|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
EXPRESSIONS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}
# https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md
BY_LLGUIDANCE = ("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
FORMATS = (*EXPRESSIONS, *BY_LLGUIDANCE)  # others are annotations


def write_format(node: dict[str, Any]) -> bool:
    """Replaces the format of a prepared schema by its expression, if it has one. Returns whether a text has to match
    another pattern as well."""
    expression = EXPRESSIONS.get(node.get("format", ""))
    if expression is None:
        return False
    del node["format"]
    pattern = f"^{expression}$"
    if "pattern" not in node:
        node["pattern"] = pattern
        return False
    node["allOf"] = [*node.get("allOf", ()), {"pattern": pattern}]
    return True
