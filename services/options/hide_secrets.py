"""Moves secrets from a command line to the environment: every user can read command lines (`ps`).

The process starts itself anew with what this returns (services/machine/start_anew.py). Until then, for the time in
which Python starts, the command line shows them: a secret that must never be seen goes into the variable or a file from
the start.
"""

import argparse

from services.options.command_line import Parser
from services.options.commands import flag_of, settings_of_command
from services.options.vllm.reader import flags_beside, spelled


def without_secrets(command: str, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments without secret options, and the environment variables that set the same. Raises UsageError.

    Flags with several values come back one by one: `--served-model-name a --api-key k MODEL` must not become
    `--served-model-name a MODEL`.
    """
    settings = settings_of_command(command)
    secrets = {name: one for name, one in settings.items() if one.secret and not one.in_environment_only}
    with_several = [flag_of(name) for name, one in settings.items() if one.many]
    if command == "serve":
        with_several += [title for title, flag in flags_beside().items() if flag.form.many]
    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in secrets:
        parser.add_argument(flag_of(name), dest=name, action="append")
    for title in with_several:
        parser.add_argument(title, dest=title, action="extend", nargs="+")
    # `--api_key` is as good as `--api-key`.
    found, rest = parser.parse_known_args(spelled(argv) if command == "serve" else argv)
    values = vars(found)
    given = {name: values[name] for name in secrets if name in values}
    if not given:
        return argv, {}
    for name, texts in given.items():
        for text in texts:  # an empty variable counts as none: an empty key must be refused here
            secrets[name].convert(flag_of(name), text)
    several = [f"{title}={value}" for title in with_several for value in values.get(title, ())]
    # The last one counts, as in the command line, unless several are meant.
    return [*several, *rest], {
        secrets[name].env[0]: "\n".join(values if secrets[name].repeated else values[-1:])
        for name, values in given.items()
    }
