"""The settings that several roles share: logs, traces, secret, metrics server and model."""

import dataclasses

import pytest

from services.options.command_line import parse, role_argv
from services.options.common import ClusterOptions, MetricsOptions, ModelOptions, SecretOptions
from services.options.declarations import ROLE_OPTIONS, ROLES, settings_of
from services.options.setting import UsageError
from services.options.tools import CredentialsOptions


@pytest.mark.parametrize("role", ROLES)
def test_every_role_logs_traces_and_knows_the_secret(role: str) -> None:
    assert issubclass(ROLE_OPTIONS[role], ClusterOptions)
    options = parse(role, ["--log-level=debug", "--log-format=json", "--cluster-secret-file=s", "--parent-death-fd=3"])
    assert (options.log_level, options.log_format) == ("debug", "json")
    assert (options.cluster_secret_file, options.parent_death_fd) == ("s", 3)


def test_all_roles_but_the_shim_have_a_metrics_server() -> None:
    assert [role for role in ROLES if not issubclass(ROLE_OPTIONS[role], MetricsOptions)] == ["shim"]


def test_tokenizer_and_worker_read_the_model() -> None:
    assert [role for role in ROLES if issubclass(ROLE_OPTIONS[role], ModelOptions)] == ["tokenizer", "worker"]
    for role in ("tokenizer", "worker"):
        assert (parse(role, []).model, parse(role, []).revision) == ("demo", None)
        assert parse(role, ["/m", "--revision=v1"]).revision == "v1"


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse("engine", []).log_level = "debug"


def test_the_secret_itself_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --cluster-secret="):
        parse("engine", ["--cluster-secret=abc"])
    monkeypatch.setenv("TANDEM_CLUSTER_SECRET", "abc")
    assert parse("engine", []).cluster_secret == "abc"
    assert role_argv("engine", {"cluster_secret": "abc", "cluster_secret_file": "s"}) == []


@pytest.mark.parametrize("command", ["engine", "internal-credentials"])
def test_a_secret_and_a_file_with_a_secret_contradict_each_other(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CLUSTER_SECRET", "abc")
    argv = ["--cluster-secret-file=s", *(["--out=o"] if command == "internal-credentials" else [])]
    with pytest.raises(UsageError, match="--cluster-secret-file and TANDEM_CLUSTER_SECRET are both given"):
        parse(command, argv)


def test_the_tool_for_credentials_has_the_secret_and_nothing_else_of_a_role() -> None:
    assert settings_of(CredentialsOptions).keys() == settings_of(SecretOptions).keys() | {"out"}


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_the_endpoint_of_traces_may_come_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:4317")
    monkeypatch.setenv(variable, "http://own:4317")
    assert parse("engine", []).otlp_traces_endpoint == "http://own:4317"
