"""The shim warns when its port listens on all interfaces without an API key."""

import logging
from pathlib import Path
from typing import Any

import pytest

from services.machine.listen import listen
from services.options.declarations import ShimOptions
from services.shim.access.rules import access_rules, warn_if_open


@pytest.mark.parametrize(
    ("host", "options", "warns"),
    [
        ("0.0.0.0", {}, True),
        ("0.0.0.0", {"api_key": ("key",)}, False),
        ("0.0.0.0", {"admin_api_key": "key"}, False),
        ("0.0.0.0", {"api_key_file": "keys"}, False),
        (None, {}, False),
    ],
)
def test_an_open_port_without_a_key_is_a_warning(
    host: str | None,
    options: dict[str, Any],
    warns: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text(f"alice, , {'a' * 64}\n")
    with listen(host, 0) as front, caplog.at_level(logging.WARNING):
        address, port = front.getsockname()[:2]
        warn_if_open(address, port, access_rules(ShimOptions(**options), address).keys)
    said = [
        f"port {port} listens on all interfaces without --api-key or --api-key-file:"
        " every client that reaches it is served"
    ]
    assert [record.message for record in caplog.records] == (said if warns else [])
