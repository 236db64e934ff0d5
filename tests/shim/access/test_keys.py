"""Which `authorization` values stand for which caller, and what a caller may do."""

import pytest

from services.shim.access.keys import Caller, Key, Keys, digest_of

ALICE, BOB = Caller("alice", "a"), Caller("bob", "b")


def keys(*more: Key) -> Keys:
    return Keys([Key(digest_of("a key"), ALICE), Key(digest_of("ключ"), BOB), *more])


@pytest.mark.parametrize(
    ("value", "caller"),
    [
        (b"Bearer a key", ALICE),
        (b"bearer a key", ALICE),
        ("Bearer ключ".encode(), BOB),
        (b"Bearer other", None),
        (b"Bearer a key ", None),
        (b"Bearer  a key", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Basic a key", None),
        (b"a key", None),
        (b"", None),
        (b"Bearer \xff\xfe", None),
        (b"Bearer " + digest_of("a key"), None),
        (b"Bearer " + digest_of("a key").hex().encode(), None),
    ],
)
def test_the_caller_of_a_value(value: bytes, caller: Caller | None) -> None:
    assert keys().caller_in(value) == caller


def test_replaced_keys_open_no_more() -> None:
    found = keys()
    found.replace([Key(digest_of("new"), ALICE)])
    assert found.caller_in(b"Bearer a key") is None
    assert found.caller_in(b"Bearer new") == ALICE
    found.replace([])
    assert found.caller_in(b"Bearer new") is None


def test_with_an_admin_key_no_other_may_administer() -> None:
    admin = Caller("admin", is_admin=True)
    assert keys().may_administer(ALICE)
    both = keys(Key(digest_of("admin"), admin))
    assert both.may_administer(admin) and not both.may_administer(ALICE)


def test_digests_are_looked_up_under_a_secret() -> None:
    """Two servers keep the same key under different names: a client knows no bit of what its token is compared with."""
    names = [set(vars(one)["_callers"]) for one in (keys(), keys())]
    assert len(names[0] | names[1]) == 4 and digest_of("a key") not in names[0]
