"""The text of a rendered prompt, with the places where a request's own text must not act as control tokens."""

import msgspec


class PromptText(msgspec.Struct, frozen=True):
    """A prompt before it is encoded.

    `plain_spans`: ranges [start, end) of characters in `text`, ascending and disjoint. Within them, an added token's
    text is plain text: it comes from a request's content, not from the chat template.
    """

    text: str
    plain_spans: tuple[tuple[int, int], ...] = ()

    def part(self, start: int, end: int) -> "PromptText":
        """Returns the prompt of the characters [start, end)."""
        spans = (
            (max(one, start) - start, min(other, end) - start)
            for one, other in self.plain_spans
            if one < end and other > start
        )
        return PromptText(self.text[start:end], tuple(spans))
