"""`tandem serve` with a command line: what it takes without effect, or why it refuses it."""

import pytest

from services.options.command_line import parse
from services.options.declarations import ServeOptions
from services.options.setting import UsageError

MODEL = "/models/some"


def serve(*argv: str) -> ServeOptions:
    options = parse("serve", [MODEL, *argv])
    assert isinstance(options, ServeOptions)
    return options


def taken(*argv: str) -> tuple[str, ...]:
    """Returns the flags that have no effect; asserts that nothing else was set."""
    options = serve(*argv)
    assert options.role_values == {"model": MODEL}
    return options.without_effect


def refusal(*argv: str) -> str:
    """Returns the line that refuses a command line."""
    with pytest.raises(UsageError) as caught:
        serve(*argv)
    message = str(caught.value)
    assert "\n" not in message
    return message
