"""The short form of the second part of `make hostile`: attacks on the HTTP port change no answer and stall nobody."""

from pathlib import Path

from tests.security.deployment import Deployment
from tests.security.front import run
from tests.security.front_attacks import ATTACKS

SECONDS = 0.6
MAX_LAG = 0.4  # because other tests run at the same time; `make hostile` allows 0.02


def test_no_attack_on_the_http_port_changes_an_answer(tmp_path: Path) -> None:
    reports: list[str] = []
    lags, options = tmp_path / "lags", ["--trust-request-chat-template"]
    with Deployment(tmp_path, lags=lags, tokenizer_options=options).running() as deployment:
        late = run(deployment, lags, list(ATTACKS), SECONDS, reports.append, MAX_LAG)
        if late:  # the machine stood still, or the shim did: only the shim is late again
            late = run(deployment, lags, late, SECONDS, reports.append, MAX_LAG)
    assert late == [], "\n".join(reports)
