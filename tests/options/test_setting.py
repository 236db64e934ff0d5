"""One setting: how its text becomes a value, and which message refuses a wrong one."""

import json
import math

import pytest

from services.options.setting import (
    Setting,
    UsageError,
    addresses,
    any_json,
    boolean,
    host_and_port,
    integer,
    json_object,
    named_addresses,
    origins,
    split_address,
    text_list,
)


def refusal(one: Setting, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        one.convert("--x", text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1k", 1000), ("2.5K", 2560), ("4M", 4 * 2**20), ("8G", 8 * 2**30), ("1g", 10**9), ("0.5t", 5 * 10**11)],
)
def test_an_integer_may_have_a_unit(text: str, number: int) -> None:
    assert Setting("", parse=integer).convert("--x", text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "1.5", "4GB", "4 GiB", "infk", "nank", "-infG", "1e999k", "nan", "inf", "one"]
)
def test_text_that_is_no_integer_is_refused(text: str) -> None:
    assert refusal(Setting("", parse=integer), text).startswith(f"--x: {text!r} is not valid")


@pytest.mark.parametrize(
    ("low", "high", "text", "limits"),
    [
        (0, 9, "10", "from 0 to 9"),
        (0, 9, "-1", "from 0 to 9"),
        (0.1, 86400.0, "inf", "from 0.1 to 86400"),
        (0.1, 86400.0, "nan", "from 0.1 to 86400"),
        (1, None, "0.5", "at least 1"),
        (1, None, "nan", "at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(low: float, high: float | None, text: str, limits: str) -> None:
    one = Setting("", parse=float, low=low, high=high)
    assert refusal(one, text) == f"--x: {text} must be {limits}"
    assert one.range_text() == limits


@pytest.mark.parametrize("text", ["0", "9"])
def test_both_ends_of_a_range_are_allowed(text: str) -> None:
    assert Setting("", parse=int, low=0, high=9).convert("--x", text) == int(text)


def test_without_limits_every_number_is_allowed() -> None:
    assert math.isinf(Setting("", parse=float).convert("--x", "-inf"))
    assert Setting("", parse=float).range_text() == ""


def test_a_value_that_is_no_choice_is_refused_with_the_choices() -> None:
    one = Setting("", choices=("text", "json"))
    assert one.convert("--x", "json") == "json"
    assert refusal(one, "xml") == "--x: 'xml' is not one of text, json"
    assert refusal(one, "") == "--x: '' is not one of text, json"


def test_an_empty_text_is_refused() -> None:
    """An empty API key would leave the server open."""
    assert refusal(Setting(""), "") == "--x: must not be empty"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_boolean(text: str, value: bool) -> None:
    assert Setting("", parse=boolean).convert("--x", text) is value


@pytest.mark.parametrize("text", ["True", "1", "yes", ""])
def test_text_that_is_no_boolean_is_refused(text: str) -> None:
    assert refusal(Setting("", parse=boolean), text) == f"--x: {text!r} is not valid: neither true nor false"


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", ""])
def test_a_json_object_must_be_one(text: str) -> None:
    assert refusal(Setting("", parse=json_object), text).startswith(f"--x: {text!r} is not valid: ")
    assert Setting("", parse=json_object).convert("--x", '{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "address"),
    [("a.example:80", ("a.example", 80)), ("[::1]:0", ("::1", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))],
)
def test_an_address_is_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert host_and_port(text) == text


@pytest.mark.parametrize("text", ["", "a", ":80", "a:", "a:65536", "a:-1", "a:٣", "a:b"])
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port with a port from 0 to 65535"):
        split_address(text)


@pytest.mark.parametrize("text", ["::1", "::1:0", "fe80::1:80"])
def test_an_ipv6_address_needs_brackets(text: str) -> None:
    assert refusal(Setting("", parse=host_and_port), text).endswith("an IPv6 address needs brackets, as in [::1]:8000")


def test_lists_of_addresses_are_comma_separated() -> None:
    assert addresses("unix:/a,b:1,") == ("unix:/a", "b:1")
    assert named_addresses("engine=[::1]:1,worker=a:2") == ("engine=[::1]:1", "worker=a:2")


@pytest.mark.parametrize(("text", "part"), [("a:1", "a:1"), ("x=a:1,=b:2", "=b:2"), ("x=", "x=")])
def test_a_named_address_needs_both_parts(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=f"{part!r} is not NAME=host:port"):
        named_addresses(text)


@pytest.mark.parametrize("text", ["", "a", "[1]", '"a"', '{"a": 1}', '[""]', "[null]", '["a"'])
def test_a_text_list_is_a_json_list_of_texts(text: str) -> None:
    assert text_list('["a", "b c"]') == ("a", "b c") and text_list("[]") == ()
    with pytest.raises(ValueError):
        text_list(text)


@pytest.mark.parametrize(
    "text",
    ["a", "https://", "https://a/", "https://a/path", "https://A", "https://u@a", "a.example", "https://a?b", ""],
)
def test_an_origin_has_a_scheme_and_no_path(text: str) -> None:
    good = ("*", "null", "https://a", "http://a:80", "app://obsidian.md", "http://[::1]:3000")
    assert origins(json.dumps(good)) == good
    with pytest.raises(ValueError, match=r"is not an origin|not empty"):
        origins(json.dumps([text]))


@pytest.mark.parametrize("text", ["a\nb", "a\x00", "\x7f", "a\u2028b"])
def test_a_secret_is_one_line_and_not_shown(text: str) -> None:
    """In the environment, the lines of a variable are keys."""
    with pytest.raises(UsageError, match=r"^--api-key: must be one line of printable characters$"):
        Setting("a key", secret=True).convert("--api-key", text)


def test_json_that_is_nested_too_deeply_is_no_traceback() -> None:
    for parse in (any_json, json_object):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse("[" * 100_000)
