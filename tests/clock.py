"""A clock that a test moves on, in place of the one by which processes count how long a request has waited."""


class Clock:
    """Stands still; `now` is in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
