"""Tables of calls for models whose own way to write them is not known, or cannot say a request's calls.

Grammars write in these forms and no model does so by itself: vLLM's array for required calls, and bare arguments for a
call whose name the request has named.
"""

import functools

from services.tokenizer.parsing.read_table import table_of
from services.tokenizer.parsing.table import Table

REQUIRED = "required_calls"
NAMED = "named_call"


@functools.cache
def required_table() -> Table:
    """Returns the table of an array of objects with `name` and `parameters`."""
    return table_of(
        {
            "tools": [REQUIRED],
            "start": "start",
            "markers": {"list": "[", "comma": ",", "end_list": "]"},
            "states": {
                "start": {"read": "start", "on": {"list": "call"}},
                "call": {"read": "json_call", "on": {"done": {"to": "between", "do": ["end"]}}},
                "between": {"read": "layout", "on": {"comma": "call", "end_list": "content"}},
            },
            "write": {
                "first": "[",
                "call": '{"name": "$name", "parameters": $arguments}',
                "between": ", ",
                "last": "]",
            },
        }
    )


@functools.lru_cache(maxsize=256)
def named_table(name: str) -> Table:
    """Returns the table of an answer that is the arguments of a call of the function `name`."""
    begins = {"to": "arguments", "do": ["call"], "keep": True, "name": name}
    return table_of(
        {
            "tools": [NAMED],
            "start": "start",
            "markers": {"object": "{"},
            "states": {
                "start": {"read": "start", "on": {"object": begins}},
                "arguments": {"read": "json", "on": {"done": {"to": "content", "do": ["end"]}}},
            },
            "write": {"call": "$arguments", "several": False},
        }
    )
