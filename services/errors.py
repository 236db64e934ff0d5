"""The error that ends a process. Errors of single requests are in services/rpc/errors.py."""


class Fatal(Exception):
    """The process cannot continue. The message is shown to the user, in one line."""
