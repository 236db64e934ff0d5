"""The shim warns when its port listens on all interfaces without an API key."""

import logging

import pytest

from services.machine.listen import listen
from services.shim.api_key import warn_if_open


@pytest.mark.parametrize(
    ("host", "api_key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "key", False), (None, None, False)]
)
def test_an_open_port_without_a_key_is_a_warning(
    host: str | None, api_key: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with listen(host, 0) as front, caplog.at_level(logging.WARNING):
        address, port = front.getsockname()[:2]
        warn_if_open(address, port, api_key)
    said = [f"port {port} listens on all interfaces without --api-key: every client that reaches it is served"]
    assert [record.message for record in caplog.records] == (said if warns else [])
