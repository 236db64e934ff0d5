"""The only reader of the options of `tandem serve`, the roles and two tools: flags, environment, configuration files.

Every other module gets frozen options (services/options/declarations.py). A wrong option is refused in one line. Also
writes the command line and the environment from which a role started by the launcher reads the same values.
"""

import argparse
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from services.options.commands import COMMAND_OPTIONS, default_text, flag_of, groups, settings_of_command
from services.options.declarations import ROLE_OPTIONS, EngineOptions, ServeOptions, settings_of
from services.options.dotted import joined
from services.options.http import HttpOptions
from services.options.setting import Setting, UsageError, boolean, json_object, origins, text_list
from services.options.structured import structured_outputs
from services.options.vllm.flag import Flag
from services.options.vllm.reader import add_flags, file_values, flags_beside, renamed, settled, spelled

_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that the locale's encoding cannot decode
VLLM_FLAGS = "Other flags of vLLM have no effect, or are refused with what is missing: docs/coming-from-vllm.md"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _build_parser(command: str, words: list[str]) -> Parser:
    parser = Parser(
        prog=f"tandem {command}",
        description="Serves one model with four kinds of processes."
        if command == "serve"
        else COMMAND_OPTIONS[command].__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        epilog=VLLM_FLAGS if command == "serve" else None,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with options by these names; flags override it")
    for title, settings in groups(command).items():
        group = parser.add_argument_group(title)
        for name, one in settings.items():
            default = default_text(command, name)
            _add(group, name, one, f"{one.help} (default: {default})" if default else one.help)
    if command == "serve":
        add_flags(parser, words)
    return parser


def _add(group: "argparse._ArgumentGroup", name: str, one: Setting, text: str) -> None:
    if one.positional:
        group.add_argument(name, nargs="?", metavar=name.upper(), help=text)
    elif one.parse is boolean:
        group.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, help=text)
    elif one.many:
        group.add_argument(flag_of(name), action="extend", nargs="+", help=text, metavar="NAME")
    elif one.repeated:
        # One value each: of `--api-key KEY MODEL`, the model must not become a key.
        group.add_argument(flag_of(name), action="append", help=text, metavar=name.upper())
    else:
        group.add_argument(flag_of(name), help=text, metavar="|".join(one.choices) or name.upper())


def _convert(one: Setting, name: str, raw: Any) -> Any:
    """Returns the checked value of `raw`: a string of the command line or environment, or a YAML value (there 0123 is
    83, `no` is False). `name` is for errors. Raises UsageError."""
    if not (one.many or one.repeated):
        return _convert_one(one, name, raw)
    return tuple(_convert_one(one, name, part) for part in (raw if isinstance(raw, list) and raw else [raw]))


def _convert_one(one: Setting, name: str, raw: Any) -> Any:
    if isinstance(raw, str) and (found := _SURROGATE.search(raw)):
        raise UsageError(
            f"{name}: {found.group()!a} in {raw!a} is not a character of this locale: set a UTF-8 locale, for example"
            " LC_ALL=C.UTF-8"
        )
    if one.parse is str and not isinstance(raw, str):
        raise UsageError(f"{name}: {raw!r} is not a string; write it in quotes")
    return one.convert(name, raw if isinstance(raw, str) else json.dumps(raw, default=str))


def _read_file(path: str, settings: dict[str, Setting], beside: Mapping[str, Flag]) -> dict[str, Any]:
    """Returns the values of a configuration file by destination. `beside`: flags of vLLM by destination."""
    import yaml  # only with --config: `tandem --help` must answer at once

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: not a mapping of options")
    named = {str(key).replace("-", "_"): value for key, value in content.items()}
    values = file_values(named, settings, beside)
    known = {name for name, one in settings.items() if not one.in_environment_only}
    unknown = sorted(name for name in values if name not in known and name not in beside)
    if unknown:
        raise UsageError(f"--config {path}: unknown option {unknown[0]!r}")
    return values


def parse(command: str, argv: list[str]) -> Any:
    """Returns the frozen options of `command`, an instance of its class in COMMAND_OPTIONS. Raises UsageError.

    Prints the text of --help and then raises SystemExit.
    A flag overrides an environment variable, which overrides the file of --config, which overrides the default.
    """
    options, settings = COMMAND_OPTIONS[command], settings_of_command(command)
    objects = [flag_of(name) for name, one in settings.items() if one.parse in (json_object, structured_outputs)]
    beside = flags_beside() if command == "serve" else {}
    objects += [title for title, flag in beside.items() if flag.has_dotted_forms]
    words = joined(spelled(argv) if command == "serve" else argv, objects)
    given = renamed(vars(_build_parser(command, words).parse_args(words)))
    values = renamed(_read_file(given.pop("config"), settings, beside)) if "config" in given else {}
    titles = {name: name.upper() if one.positional else flag_of(name) for name, one in settings.items()}
    for name, one in settings.items():
        variables = [env for env in one.env if os.environ.get(env)]
        if variables and name not in given:
            text, titles[name] = os.environ[variables[0]], variables[0]
            values[name] = [line for line in text.split("\n") if line] if one.repeated else text
    found = settled(values | given, _convert)
    raw_values = {name: raw for name, raw in found.values.items() if raw is not None}
    converted = {name: _convert(settings[name], titles[name], raw) for name, raw in raw_values.items()}
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
        without_effect=found.without_effect,
    )


def _check_together(values: dict[str, Any]) -> None:
    """Raises UsageError for option values that contradict each other. `values`: those given, by name."""
    if "cluster_secret" in values and "cluster_secret_file" in values:
        raise UsageError("--cluster-secret-file and TANDEM_CLUSTER_SECRET are both given: give only one of them")
    if values.get("allow_credentials") and "*" in values.get("allowed_origins", ()):
        raise UsageError("--allow-credentials is refused with --allowed-origins '[\"*\"]': name the origins")
    _check_tls(values)
    num_seqs = values.get("max_num_seqs", EngineOptions.max_num_seqs)
    num_tokens = values.get("max_num_batched_tokens", EngineOptions.max_num_batched_tokens)
    if num_tokens < num_seqs:
        raise UsageError(
            f"--max-num-batched-tokens is {num_tokens}, but must be at least --max-num-seqs, {num_seqs}:"
            " each running request needs one token of a step"
        )


def _check_tls(values: dict[str, Any]) -> None:
    """Raises UsageError for options of TLS without those that they need."""
    given = [name for name in settings_of(HttpOptions) if "ssl" in name and values.get(name, False)]
    if given and "ssl_certfile" not in values:
        raise UsageError(f"{flag_of(given[0])} has no effect without --ssl-certfile")
    if values.get("ssl_cert_reqs") and "ssl_ca_certs" not in values:
        raise UsageError("--ssl-cert-reqs needs --ssl-ca-certs: without an authority no client's certificate is valid")


def role_argv(role: str, values: dict[str, Any]) -> list[str]:
    """Returns the flags and the positional argument of one role. `values`: settings of any role by name.

    Settings with an environment variable are left out (see role_environment): other users can read command lines.
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
        elif one.many or one.repeated:
            argv += [f"{flag_of(name)}={part}" for part in value]
        else:
            argv.append(f"{flag_of(name)}={_as_text(one, value)}")
    return [*positional, *argv]


def role_environment(role: str, values: dict[str, Any]) -> dict[str, str]:
    """Returns the environment variables for the settings of one role that have one. `values`: as in role_argv."""
    return {
        one.env[0]: _as_text(one, values[name])
        for name, one in settings_of(ROLE_OPTIONS[role]).items()
        if one.env and values.get(name) is not None
    }


def inherited_environment() -> dict[str, str]:
    """Returns this process's environment without the secrets that are options: children get only their own, by
    role_environment."""
    every = (one for options in ROLE_OPTIONS.values() for one in settings_of(options).values())
    secret = {env for one in every if one.secret for env in one.env}
    return {name: value for name, value in os.environ.items() if name not in secret}


def _as_text(one: Setting, value: Any) -> str:
    if isinstance(value, tuple) and one.parse not in (text_list, origins):
        return ("\n" if one.repeated else ",").join(value)
    return json.dumps(value) if isinstance(value, dict | tuple) else str(value)
