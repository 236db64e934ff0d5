"""The address of the gateway API: free ports, ports in use, and where a key is needed."""

import pytest

from services.errors import Fatal
from services.machine import loopback
from services.options import extras
from services.process.gateway_address import gateway_address
from tests.addresses import HOST, open_server


def test_it_is_the_loopback_address_unless_one_is_named() -> None:
    host, port = gateway_address(None, 0, no_key=True)
    assert host == loopback() and port > 0
    assert gateway_address(host, port, no_key=False) == (host, port), "the port is free again"


def test_a_port_in_use_is_fatal() -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fatal, match=f"cannot listen on .*{port}: Address already in use"):
            gateway_address(HOST, port, no_key=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "[::]", "::ffff:0.0.0.0"])
def test_all_interfaces_need_a_key(host: str) -> None:
    try:
        found, _ = gateway_address(host, 0, no_key=False)
    except Fatal as error:
        pytest.skip(str(error))  # no IPv6
    with pytest.raises(Fatal, match=f"--grpc-no-key is refused on {found}, all interfaces: name one address"):
        gateway_address(host, 0, no_key=True)


def test_without_the_extra_it_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(Fatal, match="--grpc-port needs smg_grpc_proto: pip install 'tandem-llm\\[grpc]'"):
        gateway_address(None, 0, no_key=False)
