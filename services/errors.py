"""Why a process cannot go on. Errors of single requests are in services/rpc/errors.py."""


class Fatal(Exception):
    """The process cannot go on; the message is for people."""


class PeerGone(Fatal):
    """The process cannot go on without another one, which has told people why: this one only logs it."""
