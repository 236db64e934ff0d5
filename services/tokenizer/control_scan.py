"""Finds the places of a string that act as control tokens, or would together with the text beside the string.

One pass of a regular expression over a string that has no character with which a control token begins or ends; all
else is linear too, whatever the string and however many control tokens there are.
"""

import re
from collections.abc import Iterable, Iterator, Set

from services.tokenizer.template_texts import TemplateTexts

Span = tuple[int, int]  # [start, end), in characters


class ControlScan:
    """Finds these control tokens' texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        first, last = ({text[end] for text in self._texts} for end in (0, -1))
        self._suffixes, self._prefixes = _parts(self._texts)
        self._longest_part = max((len(text) for text in self._texts), default=1) - 1
        self._first, self._last = _one_of(first), _one_of(last)
        self._ends = tuple(sorted(first | last))
        escapes_more = any(character < " " or character in '"\\' for character in self._ends)
        self._json_ends = (*self._ends, "\\" if escapes_more else "\\u")
        self._whole = _any_of(self._texts)
        self._inner: frozenset[str] = frozenset()  # strings that a template completes to a token
        self._replaced: frozenset[str] = frozenset()  # texts that a template replaces in strings
        self._every_end = self._first

    def may_have(self, json_text: str) -> bool:
        """Returns whether a string within this JSON text may have spans. False is sure."""
        return bool(self._texts) and (bool(self._inner) or _has_any(self._json_ends, json_text))

    def spans(self, text: str) -> list[Span]:
        """Returns the spans of control tokens' texts, ascending and disjoint, and of a proper part of one at the
        beginning (its end) and at the end (its beginning). Parts of whitespace only do not count."""
        if self._inner and text in self._inner:
            return [(0, len(text))]
        if not _has_any(self._ends, text):
            return []
        head, tail = self._head(text), self._tail(text)
        found = [(0, head)] if head else []
        found += [match.span() for match in self._whole.finditer(text)]
        if tail < len(text):
            found.append((tail, len(text)))
        if self._replaced and _has_any(self._replaced, text):
            found += [match.span(1) for match in self._every_end.finditer(text) if match.group(1)]
        return list(_merged(sorted(found)))

    def _head(self, text: str) -> int:
        """Returns the end of the part at the beginning; also of one that a template's trim would bring there."""
        first = len(text) - len(text.lstrip())
        ends = (match.end() for match in self._last.finditer(text, first, first + self._longest_part))
        return max((end for end in ends if text[first:end] in self._suffixes), default=0)

    def _tail(self, text: str) -> int:
        last = len(text.rstrip())
        starts = (match.start() for match in self._first.finditer(text, max(0, last - self._longest_part), last))
        return next((start for start in starts if text[start:last] in self._prefixes), len(text))

    def of_template(self, texts: TemplateTexts) -> "ControlScan":
        """Returns a scan for one template. It also finds what the template would make into a control token: a string
        between two of its literals, as "think" in one that writes `<` and a parameter's name and `>`; one in another
        case; one that has a text which the template replaces, as `<|im_/no_thinkend|>`."""
        lengths = range(1, self._longest_part + 1)
        starts = {text[-n:] for text in texts.literals for n in lengths} & self._prefixes
        ends = {text[:n] for text in texts.literals for n in lengths} & self._suffixes
        other = ControlScan.__new__(ControlScan)
        other.__dict__.update(self.__dict__)
        other._inner = frozenset(_inner(self._texts, starts, ends)) - texts.names
        other._replaced = texts.replaced
        stays = "|".join(re.escape(text) for text in texts.replaced if text) or "(?!)"
        other._every_end = re.compile(f"(?:{stays})|({_one_of(frozenset(self._ends)).pattern}+)")
        if texts.changes_case:
            other._whole = re.compile(self._whole.pattern, re.IGNORECASE)
        return other


def _has_any(parts: Iterable[str], text: str) -> bool:
    """Returns whether the text has one of these. Some searches for one character are faster than one for several."""
    for part in parts:  # noqa: SIM110 (three times as fast as any() and a generator)
        if part in text:
            return True
    return False


def _inner(texts: Iterable[str], starts: Set[str], ends: Set[str]) -> Iterator[str]:
    for text in texts:
        for start in filter(text.startswith, starts):
            for end in filter(text.endswith, ends):
                if len(start) + len(end) < len(text):
                    yield text[len(start) : len(text) - len(end)]


def _parts(texts: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the proper suffixes and the proper prefixes of the texts that are not only whitespace."""
    suffixes = frozenset(part for text in texts for n in range(1, len(text)) if (part := text[n:]).strip())
    prefixes = frozenset(part for text in texts for n in range(1, len(text)) if (part := text[:n]).strip())
    return suffixes, prefixes


def _one_of(characters: Set[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else r"(?!)")


def _any_of(texts: Set[str]) -> re.Pattern[str]:
    """Returns a pattern for the longest of the texts at each place."""
    try:
        return re.compile(_alternatives(texts))
    except RecursionError:  # runs of one character, each run a text: one alternative each
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _alternatives(texts: Iterable[str]) -> str:
    """Returns a regular expression that finds the longest of the texts at each place, in time linear in its length.

    It branches by character: one alternative per text would try each of thousands at each place.
    """
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
    if not by_first:
        return r"(?!)"
    return "|".join(re.escape(first) + _rest(rests) for first, rests in sorted(by_first.items()))


def _rest(rests: list[str]) -> str:
    if len(rests) == 1:
        return re.escape(rests[0])
    optional = "?" if "" in rests else ""
    return f"(?:{_alternatives(rests)}){optional}"


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    start = end = -1
    for one, other in spans:
        if one > end:
            if end >= 0:
                yield start, end
            start = one
        end = max(end, other)
    if end >= 0:
        yield start, end
