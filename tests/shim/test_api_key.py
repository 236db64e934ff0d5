"""Which `authorization` values hold the key. The warning without one is in tests/security/test_open_port.py."""

import pytest

from services.shim.api_key import ApiKey


@pytest.mark.parametrize(
    ("value", "right"),
    [
        (b"Bearer a key", True),
        (b"bearer a key", True),
        (b"Bearer other", False),
        (b"Bearer a key ", False),
        (b"Bearer", False),
        (b"Basic a key", False),
        (b"a key", False),
        (b"", False),
        ("Bearer ключ".encode(), False),
    ],
)
def test_the_value_holds_the_key(value: bytes, right: bool) -> None:
    assert ApiKey("a key").is_in(value) is right
