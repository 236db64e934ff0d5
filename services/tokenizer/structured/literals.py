"""Texts in quotes, as grammars write them."""

import re

from services.rpc.errors import invalid

_ESCAPE = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))""", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def unquoted(text: str, where: str) -> str:
    """Returns what stands in a grammar's quotes, without its escapes. Raises TandemError for an escape that is none."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code:
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
                raise invalid(f'{where}: "{match[0]}" is no character', where)
            return chr(int(code, 16))
        name = match[4]
        if name.isalnum() and name not in _NAMED:
            raise invalid(f'{where}: the escape "\\{name}" is not supported', where)
        return _NAMED.get(name, name)

    return _ESCAPE.sub(character, text)
