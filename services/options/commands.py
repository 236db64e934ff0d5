"""Every command and its settings, in the groups in which --help and docs/serving.md list them. Knows no parser."""

import dataclasses
import inspect
from typing import Any

from services.options.access import AccessOptions
from services.options.common import (
    ClusterOptions,
    GrpcOptions,
    ListenOptions,
    MetricsOptions,
    ModelOptions,
    ProcessOptions,
    RecoveryOptions,
    SecretOptions,
    SpareOptions,
)
from services.options.declarations import (
    ROLE_OPTIONS,
    ROLES,
    EngineOptions,
    ServeOptions,
    ShimOptions,
    WorkerOptions,
    settings_of,
)
from services.options.http import HttpOptions
from services.options.setting import Setting
from services.options.tokenizer import TokenizerOptions
from services.options.tools import TOOL_OPTIONS, CredentialsOptions, NewSecretOptions, ReloadOptions

COMMAND_OPTIONS: dict[str, type] = {"serve": ServeOptions, **ROLE_OPTIONS, **TOOL_OPTIONS}
# The group of a setting is the title of the class that declares it. The order here is the order of the groups.
_TITLES: dict[type, str] = {
    ModelOptions: "model files",
    ShimOptions: "HTTP server (shim)",
    HttpOptions: "HTTP connections (shim)",
    AccessOptions: "who may ask (shim)",
    TokenizerOptions: "chat template (tokenizer)",
    EngineOptions: "scheduling (engine)",
    WorkerOptions: "model execution (worker)",
    RecoveryOptions: "recovery",
    GrpcOptions: "programs (gRPC)",
    ServeOptions: "process tree (launcher)",
    ProcessOptions: "logs and traces",
    SpareOptions: "logs and traces",
    ListenOptions: "logs and traces",
    ClusterOptions: "metrics",
    MetricsOptions: "metrics",
    SecretOptions: "secret",
    ReloadOptions: "server",
    NewSecretOptions: "output",
    CredentialsOptions: "output",
}


def serve_settings() -> dict[str, Setting]:
    """Returns the settings of `tandem serve`: the launcher's own, and every setting of a role that is not internal."""
    merged = settings_of(ServeOptions)
    for role in ROLES:
        merged |= {name: one for name, one in settings_of(ROLE_OPTIONS[role]).items() if not one.internal}
    return merged


def settings_of_command(command: str) -> dict[str, Setting]:
    return serve_settings() if command == "serve" else settings_of(COMMAND_OPTIONS[command])


def groups(command: str) -> dict[str, dict[str, Setting]]:
    """Returns {group title: {name: setting}} of a command, without settings that only the environment may set."""
    found: dict[str, dict[str, Setting]] = {title: {} for title in _TITLES.values()}
    for name, one in settings_of_command(command).items():
        if not one.in_environment_only:
            found[_TITLES[_declaring_class(command, name)]][name] = one
    return {title: settings for title, settings in found.items() if settings}


def _classes(command: str) -> list[type]:
    return [ServeOptions, *ROLE_OPTIONS.values()] if command == "serve" else [COMMAND_OPTIONS[command]]


def _declaring_class(command: str, name: str) -> type:
    bases = (base for options in _classes(command) for base in options.__mro__)
    return next(base for base in bases if name in inspect.get_annotations(base))


def default_of(command: str, name: str) -> Any:
    return next(f.default for options in _classes(command) for f in dataclasses.fields(options) if f.name == name)


def default_text(command: str, name: str) -> str:
    """Returns the default of a command's setting as help and documents show it; empty for a required setting."""
    default, one = default_of(command, name), settings_of_command(command)[name]
    if one.required:
        return ""
    if default is None or default == ():
        return one.unset
    if isinstance(default, bool):
        return "on" if default else "off"
    return (
        ",".join(default)
        if isinstance(default, tuple)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
