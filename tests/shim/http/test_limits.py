"""The limits of connections, and how many the system's limit of open files allows."""

import resource

import pytest

from services.options.declarations import ShimOptions
from services.shim.http.limits import OTHER_FILES, HttpLimits


def test_they_are_those_of_the_options() -> None:
    options = ShimOptions(
        max_header_bytes=2048, max_header_count=20, max_connections=30, header_timeout=1.0, body_timeout=2.0,
        write_timeout=3.0, timeout_keep_alive=4.0,
    )  # fmt: skip
    assert HttpLimits.of(options) == HttpLimits(2048, 20, 30, 1.0, 2.0, 3.0, 4.0)
    assert HttpLimits.of(ShimOptions()) == HttpLimits()


@pytest.mark.parametrize(
    ("open_files", "expected"),
    [(resource.RLIM_INFINITY, 8192), (100_000, 8192), (4096, 4096 - OTHER_FILES), (300, 150)],
)
def test_fewer_open_files_allow_fewer_connections(
    open_files: int, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (open_files, open_files))
    assert HttpLimits.of(ShimOptions()).max_connections == expected
    assert bool(caplog.records) is (expected != 8192)
