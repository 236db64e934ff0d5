"""The command lines in compose.yaml are valid, and their addresses match. `make compose-test` starts it."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.options.command_line import parse
from services.options.declarations import ROLES

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def command_of(role: str) -> list[str]:
    """Returns the command line of a role, with the default of every variable."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", part) for part in SERVICES[role]["command"]]


def options_of(role: str) -> Any:
    name, *argv = command_of(role)
    return parse(name, argv)


def test_there_is_one_service_for_each_role() -> None:
    assert SERVICES.keys() == {*ROLES, "secret"}
    assert [role for role in ROLES if command_of(role)[0] != role] == []


def test_every_role_reads_the_secret_that_is_made_before_it_starts() -> None:
    file = options_of("secret").out
    assert [SERVICES[role]["environment"]["TANDEM_CLUSTER_SECRET_FILE"] for role in ROLES] == [file] * len(ROLES)
    for role in ROLES:
        assert SERVICES[role]["depends_on"]["secret"] == {"condition": "service_completed_successfully"}
        assert "secret:/run/tandem:ro" in SERVICES[role]["volumes"]
    assert SERVICES["secret"]["volumes"] == ["secret:/run/tandem"] and SERVICES["secret"]["network_mode"] == "none"


def test_roles_stop_from_the_top_down_and_have_the_time_to_drain() -> None:
    for role, below in itertools.pairwise(ROLES):
        assert SERVICES[role]["depends_on"][below] == {"condition": "service_started"}
    for role in ROLES[:3]:
        assert int(SERVICES[role]["stop_grace_period"].removesuffix("s")) >= options_of(role).shutdown_timeout + 3


def test_the_shim_alone_is_published_and_no_role_may_write_or_has_a_capability() -> None:
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["shim"]
    (port,) = SERVICES["shim"]["ports"]
    assert re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", port) == "127.0.0.1:8000:8000"
    for name, service in SERVICES.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_addresses_match() -> None:
    shim, tokenizer, engine, worker = map(options_of, ROLES)
    assert shim.tokenizer == (tokenizer.listen.replace("0.0.0.0", "tokenizer"),)
    assert tokenizer.engine == (engine.listen.replace("0.0.0.0", "engine"),)
    assert worker.engine == engine.worker.replace("0.0.0.0", "engine")
    listening = {role: options_of(role).metrics_listen.replace("0.0.0.0", role) for role in ROLES[1:]}
    assert set(shim.metrics_peers) == {f"{role}={address}" for role, address in listening.items()}


@pytest.mark.parametrize("role", ROLES)
def test_the_health_check_uses_the_port_of_the_role(role: str) -> None:
    options = options_of(role)
    port = options.port if role == "shim" else int(options.metrics_listen.rpartition(":")[2])
    asked = re.search(r"http://127\.0\.0\.1:(\d+)/health", SERVICES[role]["healthcheck"]["test"][3])
    assert asked is not None and int(asked.group(1)) == port


def test_the_worker_alone_has_the_image_with_torch() -> None:
    images = {role: SERVICES[role]["image"] for role in ROLES}
    assert images == {role: "${TANDEM_IMAGE:-tandem}" + ("-light" if role != "worker" else "") for role in ROLES}
    built = {
        SERVICES[role]["image"]: SERVICES[role]["build"].get("target") for role in ROLES if "build" in SERVICES[role]
    }
    assert SERVICES["secret"]["image"] == images["shim"]
    assert built == {images["worker"]: None}
    assert SERVICES["secret"]["build"]["target"] == "light"
    assert "FROM base AS light\n" in (ROOT / "Dockerfile").read_text()


def test_the_image_without_torch_has_the_protos_of_gateways() -> None:
    stage = (ROOT / "Dockerfile").read_text().partition("FROM base AS light\n")[2].partition("\nFROM ")[0]
    assert re.findall(r'pip install .* (".*")', stage) == ['"$(echo dist/*.whl)[grpc]"']


def test_the_gpu_file_changes_the_worker_alone() -> None:
    changes = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
    assert changes.keys() == {"worker"}
    (device,) = changes["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_the_fifth_container_has_credentials_but_not_the_secret() -> None:
    services = yaml.safe_load((ROOT / "tests/compose/program.yaml").read_text())["services"]
    assert [volume.partition(":")[0] for volume in services["program"]["volumes"]] == ["credentials"]
    name, *argv = services["credentials"]["command"]
    assert parse(name, argv).cluster_secret_file == "/secret/secret"
    assert (
        options_of("secret").out.rpartition("/")[2] == "secret"
        and "secret:/secret:ro" in services["credentials"]["volumes"]
    )
    assert {one["image"] for one in services.values()} == {SERVICES["tokenizer"]["image"]}
