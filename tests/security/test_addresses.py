"""Without a secret, the edges must be Unix sockets in a directory of mode 0700; each other address is refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.worker_messages import PROTOCOL, BatchLimits
from services.engine.worker_link import WorkerLink
from services.errors import Fatal
from services.rpc.transport import RpcServer, open_channel
from services.security.addresses import ZEROMQ, check_address
from services.worker.engine_link import EngineLink
from tests.e2e.harness import run_tandem
from tests.security.peers import OURS

OTHER_USER = 65534


@pytest.mark.parametrize("form", ["unix:{}/a.sock", "unix://{}/a.sock", "ipc://{}/a.sock", "unix:{}//a.sock"])
def test_a_socket_in_a_private_directory_needs_no_secret(socket_dir: Path, form: str) -> None:
    kind = form.partition("{")[0].replace("unix://", "unix:")
    assert check_address(form.format(socket_dir), None, kind) is None
    assert check_address(form.format(socket_dir), OURS, kind) is None, "a Unix socket needs no key"


def test_a_path_that_grpc_or_zeromq_would_misread_is_refused(socket_dir: Path) -> None:
    with pytest.raises(Fatal, match="the path contains %, which gRPC decodes"):
        check_address(f"unix:{socket_dir}/%2e%2e%2fa.sock", None)
    with pytest.raises(Fatal, match="write the path of a Unix socket as unix:PATH here"):
        check_address(f"ipc://{socket_dir}/a.sock", None)
    with pytest.raises(Fatal, match="write the path of a Unix socket as ipc://PATH here"):
        check_address(f"unix:{socket_dir}/a.sock", None, ZEROMQ)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8002", "[::1]:8002", "tcp://127.0.0.1:8003", "localhost:1", "dns:///a:1"]
)
def test_tcp_needs_a_secret(address: str) -> None:
    assert check_address(address, OURS) is OURS
    with pytest.raises(
        Fatal, match=r"TCP between processes needs a shared secret \(--cluster-secret-file\)"
    ) as refused:
        check_address(address, None)
    assert str(refused.value).startswith(f"{address}: ")


@pytest.mark.parametrize("address", ["unix-abstract:a", "unix:@a", "ipc://@a", "ipc://*"])
def test_a_socket_outside_a_directory_is_refused(address: str) -> None:
    with pytest.raises(Fatal, match="every user of this machine can connect"):
        check_address(address, OURS)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o770, 0o755, 0o777, 0o1777])
def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Fatal, match=rf"other users can enter {folder} \(mode \d+\): it must have mode 0700"):
        check_address(f"unix:{folder}/a.sock", None)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path, socket_dir: Path) -> None:
    (tmp_path / "link").symlink_to(socket_dir)
    (tmp_path / "file").touch()
    for name, said in (("link", "is not a directory"), ("file", "is not a directory"), ("none", "No such file")):
        with pytest.raises(Fatal, match=said):
            check_address(f"unix:{tmp_path}/{name}/a.sock", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER_USER, OTHER_USER)
    with pytest.raises(Fatal, match=f"belongs to user {OTHER_USER}, not to 0"):
        check_address(f"ipc://{folder}/a.sock", None, ZEROMQ)


@pytest.mark.parametrize(
    "use",
    [
        lambda: RpcServer("127.0.0.1:0"),
        lambda: open_channel("127.0.0.1:1"),
        lambda: WorkerLink("tcp://127.0.0.1:0", BatchLimits(PROTOCOL, 1, 1)),
        lambda: EngineLink("tcp://127.0.0.1:1"),
    ],
    ids=["gRPC server", "gRPC channel", "engine's ZeroMQ", "worker's ZeroMQ"],
)
async def test_every_end_of_every_edge_needs_a_secret(use: Callable[[], object]) -> None:
    with pytest.raises(Fatal, match="TCP between processes needs a shared secret"):
        use()


@pytest.mark.parametrize(
    "args",
    [
        ["engine"],
        ["engine", "--listen=127.0.0.1:0", "--worker=ipc:///tmp/none/a"],
        ["tokenizer", "demo"],
        ["shim", "--port=0"],
        ["worker", "demo"],
    ],
    ids=lambda args: " ".join(args),
)
def test_a_role_refuses_in_one_line(args: list[str]) -> None:
    ended = run_tandem(*args)
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if line.startswith(f"tandem {args[0]}: error: ")]
    assert "needs a shared secret" in ended.stderr or "/tmp/none" in ended.stderr
    assert "Traceback" not in ended.stderr
