"""Why a process cannot go on. Errors of single requests are in services/rpc/errors.py."""


class Fatal(Exception):
    """The process cannot go on; the message is for people."""
