"""Request ids: the header's, else the field's, else a random one."""

import pytest
from starlette.requests import Request

from services.shim.apis.request import MAX_REQUEST_ID
from services.shim.request_ids import request_id_of


def request(header: bytes | None) -> Request:
    headers = [] if header is None else [(b"x-request-id", header)]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize("given", ["a", "!~", "req-123_{}", "a" * MAX_REQUEST_ID])
def test_given_ids(given: str) -> None:
    assert request_id_of(request(given.encode()), None) == given
    assert request_id_of(request(given.encode()), "other") == given
    assert request_id_of(request(None), given) == given
    assert request_id_of(request(b""), given) == given


def test_random_ids() -> None:
    found = {request_id_of(request(header), None) for header in (None, None, b"")}
    assert len(found) == 3 and all(len(one) == 32 for one in found)


@pytest.mark.parametrize("given", [b"a b", b"\t", b"\xe9", b"a\n", b"\x7f", b"a" * (MAX_REQUEST_ID + 1)])
def test_bad_headers_are_passed_over(given: bytes) -> None:
    assert len(request_id_of(request(given), None)) == 32
    assert request_id_of(request(given), "mine") == "mine"
