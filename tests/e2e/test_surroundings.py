"""A server gives the same answers with an ASCII locale, a read-only home, a strict umask, and an IPv6 address."""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.api import CHAT
from tests.e2e.harness import Server
from tests.machine.test_network import has_ipv6

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_surroundings(tmp_path: Path, demo_server: Server) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("# Größe\nlog-level: info\n", encoding="utf-8")
    host = ["--host=::1"] * has_ipv6()
    body = {"messages": [{"role": "user", "content": "Wie geht\u2019s, Köln?"}], "max_tokens": 30}
    before = os.umask(0o077)
    try:
        with Server(f"--config={config}", *host, env={**ASCII, "HOME": "/proc"}) as server:
            answer = server.post(CHAT, body).json()
            assert 'process_up{process="worker"} 1.0' in server.get("/metrics").text
    finally:
        os.umask(before)
    assert answer["choices"] == demo_server.post(CHAT, body).json()["choices"]


def test_what_a_locale_cannot_show_is_escaped() -> None:
    code = "import sys; from services import cli; cli.USAGE = 'Gr\u00f6\u00dfe'; sys.exit(cli.main(['--help']))"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Gr\\xf6\\xdfe", b"")
