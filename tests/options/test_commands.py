"""Every setting of a command is in one group of its help, with its default as text."""

import pytest

from services.options.command_line import parse
from services.options.commands import (
    COMMAND_OPTIONS,
    default_of,
    default_text,
    flag_of,
    groups,
    serve_settings,
    settings_of_command,
)
from services.options.declarations import ROLE_OPTIONS, ROLES, ServeOptions, settings_of


def names_in_groups(command: str) -> list[str]:
    return [name for settings in groups(command).values() for name in settings]


@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_every_setting_is_in_one_group(command: str) -> None:
    expected = [name for name, one in settings_of_command(command).items() if not one.in_environment_only]
    assert sorted(names_in_groups(command)) == sorted(expected)
    assert all(groups(command).values()), "a group without settings"


def test_serve_has_all_settings_of_the_roles_that_are_not_internal() -> None:
    of_roles = {name for role in ROLES for name, one in settings_of(ROLE_OPTIONS[role]).items() if not one.internal}
    assert serve_settings().keys() == of_roles | settings_of(ServeOptions).keys()
    assert not any(one.internal for one in serve_settings().values())


def test_a_setting_of_two_roles_is_declared_alike() -> None:
    """`tandem serve` has one flag for both, so it needs one help text and one range."""
    for name, one in serve_settings().items():
        for role in ROLES:
            assert settings_of(ROLE_OPTIONS[role]).get(name, one) == one, (name, role)


def test_shared_settings_are_in_the_group_of_the_class_that_declares_them() -> None:
    for command in ("serve", *ROLES):
        assert list(groups(command)["logs and traces"])[:2] == ["log_level", "log_format"]
    assert list(groups("serve")["model files"]) == list(groups("worker")["model files"]) == ["model", "revision"]


def test_secrets_themselves_are_in_no_group() -> None:
    assert "cluster_secret" in settings_of_command("engine")
    assert "cluster_secret" not in names_in_groups("engine")
    assert [command for command in COMMAND_OPTIONS if "cache_root_key" in settings_of_command(command)] == ["engine"]
    assert "cache_root_key" not in names_in_groups("engine")


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        ("serve", "port", "8000"),
        ("serve", "step_timeout", "60"),
        ("serve", "async_scheduling", "on"),
        ("serve", "api_key", "no token"),
        ("serve", "tokenizer_replicas", "1"),
        ("shim", "tokenizer", "127.0.0.1:8001"),
        ("shim", "metrics_peers", "none"),
        ("new-secret", "out", ""),
    ],
)
def test_a_default_as_help_shows_it(command: str, name: str, text: str) -> None:
    assert default_text(command, name) == text


@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_every_default_has_a_text(command: str) -> None:
    needed = [name for name, one in settings_of_command(command).items() if not one.required]
    assert [name for name in needed if not default_text(command, name)] == []


@pytest.mark.parametrize("command", ["serve", *ROLES])
def test_the_default_of_a_setting_is_what_parsing_gives(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of_command(command)
    for variable in (env for one in settings.values() for env in one.env):
        monkeypatch.delenv(variable, raising=False)
    options = parse(command, [])
    own = [name for name in settings if hasattr(options, name)]
    assert own and [name for name in own if getattr(options, name) != default_of(command, name)] == []


def test_a_flag_has_dashes() -> None:
    assert flag_of("max_num_seqs") == "--max-num-seqs"


@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_help_lists_the_groups_in_order(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(command, ["--help"])
    lines = capsys.readouterr().out.splitlines()
    positions = [lines.index(f"{title}:") for title in groups(command)]
    assert positions == sorted(positions)
