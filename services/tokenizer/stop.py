"""Finds stop strings in streamed text. Text that may be the start of one is held back until the next text decides."""


class StopMatcher:
    """Searches one choice's text for the strings in `stop`. `hit` is the one found, or None; after it, no more text is
    released. `include_in_output`: the released text ends with the hit, else before it."""

    def __init__(self, stop: list[str], *, include_in_output: bool) -> None:
        self._stop = stop
        self._firsts = frozenset(string[0] for string in stop)
        self._include = include_in_output
        self._held = ""  # may be the start of a stop string
        self._num_exempt = 0  # held characters of tokens within min_tokens: no stop string may end in them
        self.hit: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Adds text; returns the text that can be released. Of the stop strings that are now complete, the
        one that begins first is the hit; of those that begin there, the longest.

        With `may_end` False (up to min_tokens tokens) no stop string may end in this text, but one may begin in it.
        """
        if not self._stop or self.hit is not None:
            return text if self.hit is None else ""
        if not self._held and self._firsts.isdisjoint(text):
            return text  # the usual case: with 64 stop strings, the search takes 140 µs for each token
        pending = self._held + text
        exempt = self._num_exempt if may_end else len(pending)
        starts = {stop: max(0, exempt - len(stop) + 1) for stop in self._stop}
        found = [(place, -len(stop), stop) for stop in self._stop if (place := pending.find(stop, starts[stop])) >= 0]
        if found:
            place, _, self.hit = min(found)
            self._held = ""
            return pending[: place + len(self.hit)] if self._include else pending[:place]
        released = len(pending) - self._held_length(pending)
        self._held, self._num_exempt = pending[released:], max(0, exempt - released)
        return pending[:released]

    def flush(self) -> str:
        """Returns the held text: the choice has ended, so no stop string can be completed."""
        held, self._held = self._held, ""
        return held

    def _held_length(self, text: str) -> int:
        """Returns the length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
