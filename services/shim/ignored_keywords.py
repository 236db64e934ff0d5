"""The response header that names what a schema asks for without effect: keywords that are not supported."""

from collections.abc import Sequence
from urllib.parse import quote

HEADER = "tandem-ignored-keywords"
MAX_HEADER = 2000  # characters of its value
AS_IT_IS = " !\"#$&'()*+-./:;<=>?@[\\]^_`{|}~"  # all of ASCII that has a shape, but for the comma and %


def ignored_header(keywords: Sequence[str]) -> dict[str, str]:
    """Returns the header for these keywords, each with its path, as "/properties/a: not"; none without keywords.

    They are joined by commas. Commas, %, and what is not printable ASCII in them is percent-encoded. What would make
    the value longer than MAX_HEADER is left out, and its number is told at the end.
    """
    if not keywords:
        return {}
    parts: list[str] = []
    room = MAX_HEADER - len(f", and {len(keywords)} more")
    for keyword in keywords:
        part = quote(keyword, safe=AS_IT_IS)
        room -= len(part) + len(", ")
        if room < 0:
            break
        parts.append(part)
    left = len(keywords) - len(parts)
    return {HEADER: ", ".join([*parts, *([f"and {left} more"] if left else [])])}
