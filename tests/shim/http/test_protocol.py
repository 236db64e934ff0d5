"""A connection: requests one after the other, deadlines, hang-ups; as its client sees it, on a real socket."""

import contextlib
import itertools
import socket
import struct
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.shim.http.limits import HttpLimits
from tests.shim.http.raw import HOST, QUICK, Client, Running, running, wait_for

LIMIT = HttpLimits().max_header_bytes
REQUESTS = (
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    b"\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e\r\nabc\r\n2\r\nde\r\n0\r\nT: t\r\n\r\n"
    b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nxyz"
    b"GET /c%20d?e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)
BODIES = [b"/a", b"hello", b"abcde", b"/b", b"/c d"]


@pytest.fixture(scope="module")
def patient() -> Running:  # type: ignore[misc]
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def quick() -> Running:  # type: ignore[misc]
    """Its deadlines are 0.5 s."""
    with running(QUICK) as server:
        yield server


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(REQUESTS) - 1), max_size=8))
def test_any_split_of_requests_has_the_same_answers(patient: Running, cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(REQUESTS)})
    with patient.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in itertools.pairwise(places):
            client.send(REQUESTS[start:end])
        answers = [client.answer() for _ in BODIES]
        assert [answer.body for answer in answers] == BODIES
        assert client.closed()


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("size", [1000, 65536, 1_000_000])
def test_the_limit_of_headers_does_not_depend_on_the_split(patient: Running, excess: int, size: int) -> None:
    start = f"GET /a HTTP/1.1\r\n{HOST}X: ".encode()
    text = start + b"x" * (LIMIT + excess - len(start) - 4) + b"\r\n\r\n"
    assert len(text) == LIMIT + excess
    with patient.connect() as client:
        for at in range(0, len(text), size):
            client.send(text[at : at + size])
        assert client.answer().status == (431 if excess else 200)


def test_bytes_of_empty_lines_count(patient: Running) -> None:
    with patient.connect() as client:
        assert client.send("\r\n" * 100).get("/a").answer().status == 200
        answer = client.send("\r\n" * (LIMIT // 2 + 1)).answer()
        assert (answer.status, answer.error["code"]) == (431, "header_bytes")
        assert client.closed()


def test_a_refusal_is_read_to_its_end_although_more_was_sent(patient: Running) -> None:
    before = patient.rejections("header_bytes")
    with patient.connect() as client:
        sending = threading.Thread(target=lambda: ignoring(client, b"GET / HTTP/1.1\r\nX: " + b"x" * 8_000_000))
        sending.start()
        answer = client.answer()
        assert answer.status == 431 and answer.headers["connection"] == "close"
        assert answer.error["message"] == f"the request line and the headers have more than {LIMIT} bytes"
        client.close()
        sending.join()
    assert patient.rejections("header_bytes") == before + 1


def ignoring(client: Client, data: bytes) -> None:
    """Sends until the server closes the connection."""
    with contextlib.suppress(OSError):
        client.send(data)


def test_malformed_requests_have_one_line_a_second(patient: Running, caplog: pytest.LogCaptureFixture) -> None:
    before = patient.rejections("malformed")
    for _ in range(50):
        with patient.connect() as client:
            answer = client.send("\x16\x03\x01 nonsense\r\n\r\n").answer()
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
            assert "nonsense" not in answer.error["message"]
    assert patient.rejections("malformed") == before + 50
    wait_for(lambda: "malformed" in caplog.text, "it is logged")
    lines = [record for record in caplog.records if "the HTTP server refused" in record.getMessage()]
    assert len(lines) < 5 and not any(record.exc_info for record in caplog.records)


# Pipelining


def test_a_second_request_starts_when_the_first_has_its_answer(patient: Running) -> None:
    before = patient.app.paths.count("/never")
    with patient.connect() as client:
        client.get("/hold").get("/never")
        wait_for(lambda: patient.app.num_running == 1, "the first one runs")
    wait_for(lambda: patient.app.num_running == 0, "the hang-up is noticed")
    assert patient.app.paths.count("/never") == before


@pytest.mark.parametrize("behind", [b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n" * 8, b"GET /never HTT", b"x" * 300_000])
def test_a_hang_up_ends_a_request_with_others_behind_it(
    patient: Running, caplog: pytest.LogCaptureFixture, behind: bytes
) -> None:
    hung_up = patient.app.num_hung_up
    clients = [patient.connect().get("/hold").send(behind) for _ in range(8)]
    wait_for(lambda: patient.app.num_running == 8, "all run")
    for index, client in enumerate(clients):
        if index % 2:  # a reset; the others end in order
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_for(lambda: patient.app.num_running == 0, "all end")
    assert patient.app.num_hung_up == hung_up + 8
    assert not any(record.exc_info for record in caplog.records)


def test_a_half_closed_connection_is_a_hang_up(patient: Running) -> None:
    hung_up = patient.app.num_hung_up
    with patient.connect() as client:
        client.get("/hold").get("/never")
        wait_for(lambda: patient.app.num_running == 1, "it runs")
        client.socket.shutdown(socket.SHUT_WR)
        wait_for(lambda: patient.app.num_hung_up == hung_up + 1, "it ends")


def test_what_waits_behind_a_request_is_bounded(patient: Running) -> None:
    with patient.connect() as client:
        head = f"POST /echo HTTP/1.1\r\n{HOST}Content-Length: 1\r\n\r\n"
        client.send(head)
        wait_for(lambda: patient.app.num_running == 1, "it runs")
        client.send("a" + "GET /x HTTP/1.1\r\n\r\n" * 10_000)
        first = client.answer()
        assert (first.status, first.body) == (200, b"a")


# Deadlines


@pytest.mark.parametrize("text", ["", "\r\n", "GET / HTTP/1.1\r\nHo"])
def test_a_head_has_a_deadline(quick: Running, text: str) -> None:
    before = quick.rejections("header_timeout")
    with quick.connect() as client:
        if text:
            answer = client.send(text).answer()
            assert (answer.status, answer.error["code"]) == (408, "header_timeout")
        assert client.closed()
    assert quick.rejections("header_timeout") == before + bool(text)


def test_a_head_that_drips_has_the_same_deadline(quick: Running) -> None:
    with quick.connect() as client:
        stop = threading.Event()

        def drip() -> None:
            try:
                while not stop.wait(0.05):
                    client.send("X")
            except OSError:
                pass

        client.send("GET / HTTP/1.1\r\n")
        thread = threading.Thread(target=drip)
        thread.start()
        assert client.answer().status == 408
        stop.set()
        thread.join()


def test_an_idle_connection_is_closed_in_silence(quick: Running) -> None:
    before = quick.rejections("header_timeout")
    with quick.connect() as client:
        assert client.get("/a").answer().status == 200
        assert client.closed()
    assert quick.rejections("header_timeout") == before


@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_an_upload_that_stands_still_frees_its_place(quick: Running, framing: str) -> None:
    hung_up = quick.app.num_hung_up
    with quick.connect() as client:
        client.send(f"POST /echo HTTP/1.1\r\n{HOST}{framing}\r\n\r\n", "5\r\nhello\r\n")
        answer = client.answer()
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert client.closed()
    wait_for(lambda: quick.app.num_hung_up == hung_up + 1 and quick.app.num_running == 0, "its place is free")


def test_an_upload_that_drips_frees_its_place(quick: Running) -> None:
    """1 KiB in 0.05 s is more than nothing, and less than 16 KiB in 0.5 s."""
    with quick.connect() as client:
        client.send(f"POST /echo HTTP/1.1\r\n{HOST}Content-Length: 100000000\r\n\r\n")
        stop = threading.Event()

        def drip() -> None:
            try:
                while not stop.wait(0.05):
                    client.send("x" * 1024)
            except OSError:
                pass

        thread = threading.Thread(target=drip)
        thread.start()
        assert client.answer().status == 408
        stop.set()
        thread.join()
    wait_for(lambda: quick.app.num_running == 0, "its place is free")


def test_a_slow_and_steady_upload_passes(quick: Running) -> None:
    """It takes four times the deadline, and brings 20 KiB in each tenth of it."""
    piece, stop = b"x" * 20_000, threading.Event()
    with quick.connect() as client:
        client.send(f"POST /echo HTTP/1.1\r\n{HOST}Content-Length: {len(piece) * 40}\r\n\r\n")
        for _ in range(40):
            stop.wait(0.05)
            client.send(piece)
        assert client.answer().body == piece * 40


def test_a_reader_that_stands_still_is_cut(quick: Running) -> None:
    hung_up, before = quick.app.num_hung_up, quick.rejections("write_timeout")
    with quick.connect() as client:
        client.get("/stream")
        wait_for(lambda: quick.app.num_hung_up == hung_up + 1, "its place is free")
    assert quick.rejections("write_timeout") == before + 1


def test_a_reader_of_many_answers_that_stands_still_is_cut(quick: Running) -> None:
    """The next request begins although the client has not taken the answer before it."""
    before = quick.rejections("write_timeout")
    with quick.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for _ in range(30):
            client.get("/large")
        wait_for(lambda: quick.rejections("write_timeout") == before + 1, "it is cut")
    wait_for(lambda: quick.app.num_running == 0, "its place is free")


def test_a_stream_without_anything_to_send_is_not_cut(quick: Running) -> None:
    hung_up = quick.app.num_hung_up
    with quick.connect() as client, quick.connect() as other:
        client.get("/hold")
        assert other.closed(), "the deadline of a connection without a request has passed"
        with quick.connect() as third:
            assert third.closed(), "and once more"
        assert quick.app.num_running == 1 and quick.app.num_hung_up == hung_up


def test_a_slow_reader_is_not_cut(quick: Running) -> None:
    before = quick.rejections("write_timeout")
    stop = threading.Event()
    with quick.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.get("/stream")
        for _ in range(30):  # 2 s
            stop.wait(0.07)
            assert client.socket.recv(1_000_000)
        assert quick.rejections("write_timeout") == before


# An answer before the body


def test_a_small_body_behind_its_answer_is_dropped(patient: Running) -> None:
    with patient.connect() as client:
        client.send(f"POST /early HTTP/1.1\r\n{HOST}Content-Length: 1000\r\n\r\n")
        assert client.answer().body == b"/early"
        assert client.send("x" * 1000).get("/next").answer().body == b"/next"


def test_behind_a_large_body_the_connection_is_closed(patient: Running) -> None:
    with patient.connect() as client:
        client.send(f"POST /early HTTP/1.1\r\n{HOST}Content-Length: 10000000\r\n\r\n", "x" * 100_000)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        ignoring(client, b"x" * 9_900_000)
        assert client.closed()
