"""Stop strings: text goes through, but what may be the beginning of one is held back until that is decided."""


class StopMatcher:
    """`hit` is the stop string that was found; from then on nothing is released."""

    def __init__(self, stop: list[str], *, include_in_output: bool) -> None:
        self._stop = stop
        self._include = include_in_output
        self._held = ""
        self._num_exempt = 0  # characters of what is held in which no stop string may end
        self.hit: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """The text that is released. Of several stop strings the one that begins first wins, the longest at a tie.

        Without `may_end` none may end in this text, but one that ends in the next may begin here.
        """
        if not self._stop or self.hit is not None:
            return text if self.hit is None else ""
        pending = self._held + text
        exempt = self._num_exempt if may_end else len(pending)
        starts = {stop: max(0, exempt - len(stop) + 1) for stop in self._stop}
        found = [(place, -len(stop), stop) for stop in self._stop if (place := pending.find(stop, starts[stop])) >= 0]
        if found:
            place, _, self.hit = min(found)
            self._held = ""
            return pending[: place + len(self.hit)] if self._include else pending[:place]
        released = len(pending) - self._longest_beginning(pending)
        self._held, self._num_exempt = pending[released:], max(0, exempt - released)
        return pending[:released]

    def flush(self) -> str:
        """The answer is over: what was held back was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
