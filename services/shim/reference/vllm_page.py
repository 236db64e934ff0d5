"""docs/coming-from-vllm.md: what becomes of each flag, route and request field of vLLM.

`python -m services.shim.reference.vllm_page > docs/coming-from-vllm.md` (`make docs`) writes it: the flags by the table
in services/options/vllm, the fields by the requests' schemas, the routes by services/shim/routes.py.
"""

import re
import sys
from collections.abc import Iterable

from pydantic import BaseModel

from services.options.setting import boolean
from services.options.vllm.flag import Flag
from services.options.vllm.table import GROUPS
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.fields import kind_of
from services.shim.reference.vllm_fields import CHAT_FIELDS, COMPLETION_FIELDS
from services.shim.reference.vllm_routes import VLLM_ROUTES
from services.shim.reference.vllm_text import FIELDS, FLAGS, INTRODUCTION, METRICS, ROUTES
from services.shim.routes import PATHS

_FLAG = re.compile(r"(?<![\w`-])--[a-z][a-z0-9-]*")
NOT_A_FIELD = "–"


def vllm_page() -> str:
    """Returns docs/coming-from-vllm.md as Markdown."""
    return "\n\n".join([INTRODUCTION, FLAGS, *_flags(), FIELDS, _fields(), ROUTES, _routes(), METRICS]) + "\n"


def _flags() -> Iterable[str]:
    for title, flags in GROUPS.items():
        yield f"### {title}"
        yield _table(("flag", "here", ""), (_flag_row(flag) for flag in flags))


def _flag_row(flag: Flag) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (f"--{flag.name}", *flag.short))
    return names, flag.kind, _in_code(_meaning(flag))


def _meaning(flag: Flag) -> str:
    """Returns what a row says of the flag beside its kind."""
    if flag.taken_as:
        return f"taken as `{_option(flag.taken_as)}`"
    if flag.kind in ("same", "no effect"):
        return flag.clause
    allowed = _allowed(flag)
    return f"{flag.clause}; {allowed} has no effect" if allowed else flag.clause


def _option(name: str) -> str:
    return "MODEL" if name == "model" else "--" + name.replace("_", "-")


def _allowed(flag: Flag) -> str:
    """Returns the values that are taken without effect."""
    if flag.form.parse is boolean:
        return f"`--no-{flag.name}`"
    values = [f"`{_literal(value)}`" for value in flag.harmless or ()]
    if flag.equal_to:
        values.append(f"the value of {'MODEL' if flag.equal_to == 'model' else '--' + flag.equal_to}")
    return " or ".join(values)


def _literal(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fields() -> str:
    names = dict.fromkeys((*CHAT_FIELDS, *COMPLETION_FIELDS))
    rows = (
        (
            f"`{name}`",
            _field(ChatRequest, name) if name in CHAT_FIELDS else NOT_A_FIELD,
            _field(CompletionRequest, name) if name in COMPLETION_FIELDS else NOT_A_FIELD,
        )
        for name in names
    )
    return _table(("field", "chat completions", "completions"), rows)


def _field(model: type[BaseModel], name: str) -> str:
    """Returns what becomes of a field of vLLM's in requests of `model`."""
    field = model.model_fields.get(name)
    if field is None:
        return "refused: unknown"
    kind = kind_of(field)
    words = {
        "supported": "same",
        "no-op": f"no effect: {field.description}",
        "refused": f"refused: {field.description}",
    }
    return words[kind].removesuffix(".")


def _routes() -> str:
    served = {one.path.replace(":path", "") for one in PATHS}
    return _table(
        ("route", "here"),
        ((f"`{path}`", "same" if path in served else f"missing: {lacking}") for path, lacking in VLLM_ROUTES.items()),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_code(text: str) -> str:
    return _FLAG.sub(r"`\g<0>`", text)


if __name__ == "__main__":
    sys.stdout.write(vllm_page())
