"""Moves secrets from the command line of this process to its environment: every user can read command lines (`ps`).

The process executes itself anew, with the same pid, interpreter and flags. Until then, for the time in which Python
starts, the command line shows them: a secret that must never be seen goes into the variable or a file from the start.
"""

import os
import sys

from services.options.command_line import Parser
from services.options.commands import flag_of, settings_of_command
from services.options.vllm.reader import spelled


def hide_secrets(command: str, argv: list[str]) -> None:
    """Executes this process anew without the secrets of `argv`, its valid arguments behind `command`.

    Returns if there are none.
    """
    rest, variables = without_secrets(command, argv)
    start = sys.orig_argv[: len(sys.orig_argv) - len(argv)]
    if variables and sys.orig_argv[len(start) :] == argv:
        os.execve(sys.executable, [*start, *rest], {**os.environ, **variables})


def without_secrets(command: str, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments without secret options, and the environment variables that set the same."""
    secrets = {
        name: one for name, one in settings_of_command(command).items() if one.secret and not one.in_environment_only
    }
    parser = Parser(add_help=False, allow_abbrev=False)
    for name in secrets:
        parser.add_argument(flag_of(name), dest=name, action="append")
    # `--api_key` is as good as `--api-key`.
    found, rest = parser.parse_known_args(spelled(argv) if command == "serve" else argv)
    given = {name: values for name, values in vars(found).items() if values}
    # The last one counts, as in the command line, unless several are meant.
    return rest, {
        secrets[name].env[0]: "\n".join(values if secrets[name].repeated else values[-1:])
        for name, values in given.items()
    }
