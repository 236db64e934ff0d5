"""docs/serving.md: the options of `tandem serve`, the roles and two tools, written from their declarations.

`python -m services.options.serving_page > docs/serving.md` (or `make docs`) writes the page anew;
tests/options/test_serving_page.py fails when it is stale.
"""

import re
import sys
from collections.abc import Iterable

from services.options.commands import COMMAND_OPTIONS, default_text, flag_of, groups, settings_of_command
from services.options.declarations import ROLES
from services.options.serving_text import CONFIGURATION, EXTRAS, INTRODUCTION, ROLES_ALONE
from services.options.setting import Setting, boolean
from services.options.tools import TOOL_OPTIONS

_HEAD = ("option", "default", "values", "what it sets")
_FLAG = re.compile(r"--[a-z][a-z-]*")
Row = tuple[str, str, str, str]


def serving_page() -> str:
    """Returns docs/serving.md as Markdown."""
    return "\n\n".join([INTRODUCTION, CONFIGURATION, EXTRAS, *_serve(), *_roles(), *_tools()]) + "\n"


def _serve() -> Iterable[str]:
    yield "## Options of `tandem serve`"
    yield "In the groups of `tandem serve --help`."
    for title, settings in groups("serve").items():
        yield f"### {title[0].upper()}{title[1:]}"
        yield _table("serve", settings)


def _roles() -> Iterable[str]:
    yield ROLES_ALONE
    yield "\n".join(f"- `tandem {role}`: {', '.join(_from_serve(role))}" for role in ROLES)
    for roles, settings in _connections().items():
        yield "### Every role" if roles == ROLES else "### " + ", ".join(f"`tandem {role}`" for role in roles)
        yield _table(roles[0], settings)


def _from_serve(role: str) -> Iterable[str]:
    """Yields what a role takes of the options of `tandem serve`: the title of a whole group, else each option."""
    own = settings_of_command(role)
    for title, settings in groups("serve").items():
        taken = [name for name in settings if name in own]
        yield from [title] if len(taken) == len(settings) else [_name(name, settings[name]) for name in taken]


def _connections() -> dict[tuple[str, ...], dict[str, Setting]]:
    """Returns {roles: {name: setting}} of the internal settings, by the roles that share them, the most roles first."""
    found: dict[tuple[str, ...], dict[str, Setting]] = {}
    for role in ROLES:
        for name, one in settings_of_command(role).items():
            if one.internal and not one.in_environment_only:
                sharing = tuple(other for other in ROLES if settings_of_command(other).get(name) is one)
                found.setdefault(sharing, {})[name] = one
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _tools() -> Iterable[str]:
    yield "## Tools"
    for command in TOOL_OPTIONS:
        yield f"### `tandem {command}`"
        yield " ".join((COMMAND_OPTIONS[command].__doc__ or "").split())
        yield _table(command, {name: one for part in groups(command).values() for name, one in part.items()})


def _table(command: str, settings: dict[str, Setting]) -> str:
    rows: list[Row] = [_HEAD, ("---", "---", "---", "---")]
    rows += [_row(name, one, default_text(command, name)) for name, one in settings.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, one: Setting, default: str) -> Row:
    variables = ", ".join(f"`{variable}`" for variable in one.env)
    environment = f" Environment: {variables}." if variables else ""
    values = ", ".join(f"`{choice}`" for choice in one.choices) or one.range_text()
    help = f"{one.help[0].upper()}{one.help[1:]}.{environment}"
    return _name(name, one), _in_code(default or "required"), values, _in_code(help)


def _in_code(text: str) -> str:
    """Returns `text` with its flags in Markdown's code style."""
    return _FLAG.sub(r"`\g<0>`", text)


def _name(name: str, one: Setting) -> str:
    if one.positional:
        return f"`{name.upper()}`"
    return f"`{flag_of(name)}`, `{flag_of('no_' + name)}`" if one.parse is boolean else f"`{flag_of(name)}`"


if __name__ == "__main__":
    sys.stdout.write(serving_page())
