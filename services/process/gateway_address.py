"""The address of the shim's gateway API: checked by the launcher, before the model is looked for, and by the shim."""

from services.errors import Fatal
from services.machine import is_all_interfaces
from services.machine.listen import listen
from services.options.extras import lacking


def gateway_address(host: str | None, port: int, *, no_key: bool) -> tuple[str, int]:
    """Returns host and port that can be bound; a free port for 0. `host` None: the loopback address.

    Raises Fatal if the gateway's stubs are not installed, if the address cannot be bound, or if it is that of all
    interfaces although there is `no_key`.
    """
    needed = lacking("grpc")
    if needed is not None:
        raise Fatal(f"--grpc-port needs {needed}")
    with listen(host, port) as front:
        found, port = front.getsockname()[:2]
    if no_key and is_all_interfaces(found):
        raise Fatal(f"--grpc-no-key is refused on {found}, all interfaces: name one address with --grpc-host")
    return found, port
