"""What this machine says of itself."""

import time

from services.machine import busy_seconds, cpu_model


def test_the_cpu_has_a_name_of_one_line() -> None:
    assert cpu_model() == cpu_model().strip() != "" and "\n" not in cpu_model()


def test_what_this_process_burns_counts() -> None:
    before, own = busy_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert busy_seconds() - before >= 0.15
