import subprocess
import sys


def test_peers_that_send_much_and_go_away_do_not_abort_a_process() -> None:
    command = [sys.executable, "-m", "tests.zeromq.flooded"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "survived\n"), ended.stderr
