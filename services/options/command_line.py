"""The only reader of the flags, environment and configuration files of `tandem serve` and the roles.

Every other module gets frozen options (services/options/declarations.py). A wrong option is refused in one line. The
launcher's way to the roles is here as well: the command line and the environment from which a role reads the same
values back.
"""

import argparse
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from services.options.declarations import ROLE_OPTIONS, ROLES, TOOL_OPTIONS, EngineOptions, ServeOptions, settings_of
from services.options.setting import Setting, UsageError, boolean

COMMAND_OPTIONS: dict[str, type] = {"serve": ServeOptions, **ROLE_OPTIONS, **TOOL_OPTIONS}
_UNDECODED = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that the locale cannot decode


def serve_settings() -> dict[str, Setting]:
    """The launcher's own, and every setting of a role that is not internal."""
    merged = settings_of(ServeOptions)
    for role in ROLES:
        merged |= {name: one for name, one in settings_of(ROLE_OPTIONS[role]).items() if not one.internal}
    return merged


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default_of(command: str, name: str) -> Any:
    classes = [ServeOptions, *ROLE_OPTIONS.values()] if command == "serve" else [COMMAND_OPTIONS[command]]
    return next(f.default for c in classes for f in dataclasses.fields(c) if f.name == name)


def _build_parser(command: str, settings: dict[str, Setting]) -> _Parser:
    parser = _Parser(
        prog=f"tandem {command}",
        description="One model, four processes." if command == "serve" else COMMAND_OPTIONS[command].__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with options, named as here; flags win over it")
    for name, one in settings.items():
        if one.in_environment_only:
            continue
        default = _default_of(command, name)
        text = one.help if default is None else f"{one.help} (default: {default})"
        if one.positional:
            parser.add_argument(name, nargs="?", metavar=name.upper(), help=text)
        elif one.parse is boolean:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, help=one.help)
        elif one.many:
            parser.add_argument(flag_of(name), action="extend", nargs="+", help=text, metavar="NAME")
        else:
            parser.add_argument(flag_of(name), help=text, metavar="|".join(one.choices) or name.upper())
    return parser


def _convert(one: Setting, name: str, raw: Any) -> Any:
    """`raw` is a string from the command line, or whatever YAML made of the file: 0123 is 83 there, and no is False."""
    if one.many and isinstance(raw, list) and raw:
        return tuple(_convert_one(one, name, part) for part in raw)
    value = _convert_one(one, name, raw)
    return (value,) if one.many else value


def _convert_one(one: Setting, name: str, raw: Any) -> Any:
    if isinstance(raw, str) and (lost := _UNDECODED.search(raw)):
        raise UsageError(
            f"{name}: {lost.group()!a} in {raw!a} is no character of this locale: set LC_ALL=C.UTF-8, for example"
        )
    if one.parse is str and not isinstance(raw, str):
        raise UsageError(f"{name}: {raw!r} is not a string; write it in quotes")
    return one.convert(name, raw if isinstance(raw, str) else json.dumps(raw, default=str))


def _read_file(path: str, settings: dict[str, Setting]) -> dict[str, Any]:
    import yaml  # only with --config: `tandem --help` must answer at once

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: not a mapping of options")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    known = {name for name, one in settings.items() if not one.in_environment_only}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise UsageError(f"--config {path}: unknown option {unknown[0]!r}")
    return values


def parse(command: str, argv: list[str]) -> Any:
    """The frozen options of one command: flags over environment over --config over defaults. Raises UsageError."""
    options = COMMAND_OPTIONS[command]
    settings = serve_settings() if command == "serve" else settings_of(options)
    given = vars(_build_parser(command, settings).parse_args(argv))
    values = _read_file(given.pop("config"), settings) if "config" in given else {}
    titles = {name: name.upper() if one.positional else flag_of(name) for name, one in settings.items()}
    for name, one in settings.items():
        variables = [env for env in one.env if os.environ.get(env)]
        if variables and name not in given:
            values[name], titles[name] = os.environ[variables[0]], variables[0]
    values |= given
    converted = {name: _convert(settings[name], titles[name], raw) for name, raw in values.items() if raw is not None}
    missing = [titles[name] for name, one in settings.items() if one.required and name not in converted]
    if missing:
        raise UsageError(f"{missing[0]} is missing")
    _check_together(converted)
    if command != "serve":
        return options(**converted)
    own = settings_of(ServeOptions).keys()
    return ServeOptions(
        **{name: value for name, value in converted.items() if name in own},
        role_values={name: value for name, value in converted.items() if name not in own},
    )


def _check_together(values: dict[str, Any]) -> None:
    """What is right by itself, but not beside another option. Raises UsageError."""
    if "cluster_secret" in values and "cluster_secret_file" in values:
        raise UsageError("--cluster-secret-file and TANDEM_CLUSTER_SECRET are both given: there is one secret")
    num_seqs = values.get("max_num_seqs", EngineOptions.max_num_seqs)
    num_tokens = values.get("max_num_batched_tokens", EngineOptions.max_num_batched_tokens)
    if num_tokens < num_seqs:
        raise UsageError(
            f"--max-num-batched-tokens is {num_tokens}, but must be at least --max-num-seqs, {num_seqs}:"
            " some running request would never get its turn"
        )


def role_argv(role: str, values: dict[str, Any]) -> list[str]:
    """The command line of one role, from values by name; those that are not this role's are left out.

    Values that have an environment variable are left to it: a secret does not belong on a command line.
    """
    argv: list[str] = []
    positional: list[str] = []
    for name, one in settings_of(ROLE_OPTIONS[role]).items():
        value = values.get(name)
        if value is None or one.env:
            continue
        if one.positional:
            positional = [str(value)]
        elif isinstance(value, bool):
            argv.append(flag_of(name) if value else flag_of("no_" + name))
        elif one.many:
            argv += [f"{flag_of(name)}={part}" for part in value]
        else:
            argv.append(f"{flag_of(name)}={_as_text(value)}")
    return [*positional, *argv]


def role_environment(role: str, values: dict[str, Any]) -> dict[str, str]:
    """The values of one role that travel in the environment."""
    found = {one.env[0]: values.get(name) for name, one in settings_of(ROLE_OPTIONS[role]).items() if one.env}
    return {env: str(value) for env, value in found.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)
