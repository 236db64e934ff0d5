"""The options of the HTTP server: what a prefix may be, and which options of TLS need each other."""

import pytest

from services.options.command_line import parse
from services.options.http import path_prefix
from services.options.setting import UsageError


@pytest.mark.parametrize(("text", "prefix"), [("/a", "/a"), ("/a/", "/a"), ("/a.b/c-d_~", "/a.b/c-d_~")])
def test_a_prefix_has_no_slash_at_its_end(text: str, prefix: str) -> None:
    assert path_prefix(text) == prefix


@pytest.mark.parametrize("text", ["", "/", "a", "//a", "/a//b", "/a b", "/ä", "/a?b", "/%41"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path such as /tandem"):
        path_prefix(text)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ssl-keyfile=k"], "--ssl-keyfile has no effect without --ssl-certfile"),
        (["--enable-ssl-refresh"], "--enable-ssl-refresh has no effect without --ssl-certfile"),
        (["--ssl-certfile=c", "--ssl-cert-reqs=2"], "--ssl-cert-reqs needs --ssl-ca-certs"),
        (["--ssl-certfile=c", "--ssl-cert-reqs=3"], "--ssl-cert-reqs: 3 must be from 0 to 2"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "shim"])
def test_options_of_tls_that_need_others(command: str, argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(command, argv)


def test_options_of_tls_that_fit() -> None:
    argv = ["--ssl-certfile=c", "--ssl-keyfile=k", "--ssl-ca-certs=a", "--ssl-cert-reqs=2", "--enable-ssl-refresh"]
    options = parse("shim", argv)
    assert (options.ssl_certfile, options.ssl_keyfile, options.ssl_cert_reqs) == ("c", "k", 2)
    assert options.enable_ssl_refresh
