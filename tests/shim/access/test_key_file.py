"""The key file: its lines, what is wrong with one, and how it is read again."""

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import Fatal
from services.options.declarations import ShimOptions
from services.shim.access.key_file import KeyReload, is_keyed, open_keys, parse_line
from services.shim.access.keys import Caller, Keys


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def written(folder: Path, text: str) -> ShimOptions:
    file = folder / "keys"
    file.write_text(text, encoding="utf-8")
    return ShimOptions(api_key_file=str(file))


def callers(keys: Keys | None, *given: str) -> list[Caller | None]:
    assert keys is not None
    return [keys.caller_in(f"Bearer {key}".encode()) for key in given]


def test_lines(tmp_path: Path) -> None:
    text = (
        f"# who may\n\nalice, team-a, {sha('a')}\n  bob ,, {sha('b').upper()}  # until May\r\ncarol,team-a,{sha('c')}"
    )
    keys = open_keys(written(tmp_path, text))
    assert callers(keys, "a", "b", "c", "d", sha("a")) == [
        Caller("alice", "team-a"),
        Caller("bob", ""),
        Caller("carol", "team-a"),
        None,
        None,
    ]


def test_all_keys_of_options_are_in_one_group(tmp_path: Path) -> None:
    file = written(tmp_path, f"alice, , {sha('a')}").api_key_file
    keys = open_keys(ShimOptions(api_key=("x", "y", "x"), admin_api_key="z", api_key_file=file))
    found = callers(keys, "x", "y", "z", "a")
    assert {one.group for one in found if one} == {""} and None not in found
    assert [one.is_admin for one in found if one] == [False, False, True, False]


GOOD = f"alice, a, {sha('a')}\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("bob", "it has 1 fields separated by commas, but must have 3: name, group, SHA-256"),
        (f"bob, {sha('b')}", "it has 2 fields"),
        (f"bob, a, {sha('b')}, more", "it has 4 fields"),
        (f", a, {sha('b')}", "the name must be 1 to 64 letters"),
        (f"bob bob, a, {sha('b')}", "the name must be"),
        (f"{'b' * 65}, a, {sha('b')}", "the name must be"),
        (f"bob, a b, {sha('b')}", "the group must be empty, or 1 to 64 letters"),
        ("bob, a, my-secret-key", "the third field must be the SHA-256 of the key: 64 hexadecimal digits"),
        (f"bob, a, {sha('b')[:-1]}", "the third field must be"),
        (f"alice, a, {sha('b')}", "this name is taken already"),
        (f"admin, a, {sha('b')}", "this name is taken already"),
        (f"bob, a, {sha('a')}", "this key is taken already"),
        (f"bob, a, {sha('flag')}", "this key is taken already"),
        (f"bob, a, {sha('')}", "this key is taken already"),
    ],
)
def test_a_wrong_line_is_named_but_not_shown(tmp_path: Path, line: str, reason: str) -> None:
    """It may hold the key itself, and the message goes to the log."""
    options = written(tmp_path, f"{GOOD}\n{line}\n")
    with pytest.raises(Fatal) as caught:
        open_keys(ShimOptions(api_key=("flag",), api_key_file=options.api_key_file))
    message = str(caught.value)
    assert message.startswith(f"--api-key-file: {options.api_key_file}, line 3: {reason}")
    assert "my-secret-key" not in message and sha("b") not in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="keys cannot be read: No such file or directory"):
        open_keys(ShimOptions(api_key_file=str(tmp_path / "keys")))
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(Fatal, match="keys cannot be read: not in UTF-8"):
        open_keys(ShimOptions(api_key_file=str(tmp_path / "keys")))


def test_the_admin_key_is_another_one() -> None:
    with pytest.raises(Fatal, match="--admin-api-key must differ from --api-key"):
        open_keys(ShimOptions(api_key=("a",), admin_api_key="a"))


def test_a_file_without_keys_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = written(tmp_path, "# none yet\n")
    assert is_keyed(options) and not is_keyed(ShimOptions())
    assert callers(open_keys(options), "", "x") == [None, None]
    assert "holds no key" in caplog.text
    assert open_keys(ShimOptions()) is None


WORDS = st.from_regex(r"[\w.@+-]{1,64}", fullmatch=True)


@given(
    name=WORDS, group=st.just("") | WORDS, key=st.text(min_size=1), blanks=st.lists(st.sampled_from(["", " ", "\t"]))
)
def test_every_line_reads_back(name: str, group: str, key: str, blanks: list[str]) -> None:
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    pad = "".join(blanks)
    found = parse_line(f"{name}{pad},{pad}{group},{pad}{digest.hex()}")
    assert (found.caller, found.digest) == (Caller(name, group), digest)


@given(st.text())
def test_any_other_line_is_a_value_error(line: str) -> None:
    try:
        parse_line(line)
    except ValueError as error:
        assert str(error)


async def until(caplog: pytest.LogCaptureFixture, text: str) -> str:
    """Returns the log once `text` is in it, and empties it."""
    async with asyncio.timeout(10):
        while text not in caplog.text:
            await asyncio.to_thread(caplog.handler.flush)
    found = caplog.text
    caplog.clear()
    return found


async def test_reading_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    options = written(tmp_path, GOOD)
    keys = open_keys(options)
    reload = KeyReload(keys, options)
    written(tmp_path, f"bob, b, {sha('b')}\n")
    assert callers(keys, "a", "b") == [Caller("alice", "a"), None], "only when asked"
    reload()
    await until(caplog, "again: 1 keys are valid")
    assert callers(keys, "a", "b") == [None, Caller("bob", "b")]
    written(tmp_path, f"{GOOD}oops\n")
    reload()
    assert "line 2: it has 1 fields" in await until(caplog, "the keys stay as they were")
    assert callers(keys, "a", "b") == [None, Caller("bob", "b")]
    (tmp_path / "keys").unlink()
    reload()
    assert "No such file" in await until(caplog, "the keys stay as they were")
    written(tmp_path, GOOD)
    for _ in range(5):
        reload()
    await until(caplog, "again: 1 keys are valid")
    assert callers(keys, "a", "b") == [Caller("alice", "a"), None]


@pytest.mark.parametrize("options", [ShimOptions(), ShimOptions(api_key=("a",))])
async def test_without_a_file_there_is_nothing_to_read(options: ShimOptions, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    KeyReload(open_keys(options), options)()
    assert "SIGHUP has no effect: there is no --api-key-file" in caplog.text
