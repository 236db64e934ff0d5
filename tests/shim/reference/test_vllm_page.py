"""docs/coming-from-vllm.md is what the tables and the requests' schemas say, flag by flag and field by field."""

import re
from pathlib import Path

import pytest

from services.options.vllm.table import FLAGS
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.reference.vllm_fields import CHAT_FIELDS, COMPLETION_FIELDS
from services.shim.reference.vllm_page import vllm_page
from services.shim.reference.vllm_routes import VLLM_ROUTES
from services.shim.routes import PATHS
from tests.options.vllm import flags_of_vllm

DOCS = Path(__file__).parents[3] / "docs"
LINES = vllm_page().splitlines()
ROWS = {line.split("`")[1]: line for line in LINES if line.startswith("| `")}


def cells(name: str) -> list[str]:
    return [cell.strip() for cell in ROWS[name].split(" | ")][1:]


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "coming-from-vllm.md").read_text(encoding="utf-8") == vllm_page(), "run `make docs`"


def test_every_flag_of_vllm_has_a_row() -> None:
    for name in (*flags_of_vllm.ENGINE.split(), *flags_of_vllm.SERVER.split()):
        assert cells(f"--{name}")[0] == FLAGS[name].kind
    assert (
        "`--tensor-parallel-size`, `-tp` | missing | one model on several devices (tensor parallelism)" in vllm_page()
    )
    assert "; `1` has no effect" in ROWS["--tensor-parallel-size"]
    assert "the value of MODEL has no effect" in ROWS["--tokenizer"]
    assert "`--no-enable-lora` has no effect" in ROWS["--enable-lora"]
    assert cells("--model") == ["other name", "taken as `MODEL` |"]
    assert "`auto` or `-1`" in ROWS["--max-model-len"] or "auto and -1" in ROWS["--max-model-len"]


@pytest.mark.parametrize(
    ("model", "column", "names"), [(ChatRequest, 0, CHAT_FIELDS), (CompletionRequest, 1, COMPLETION_FIELDS)]
)
def test_every_field_of_vllm_has_what_the_schema_says(model: type[ChatRequest], column: int, names: list[str]) -> None:
    words = {"supported": "same", "no-op": "no effect: ", "refused": "refused: "}
    for name in names:
        field = model.model_fields.get(name)
        extra = field.json_schema_extra if field is not None else None
        wanted = words[str(extra["x-tandem"])] if isinstance(extra, dict) else "refused: unknown"
        assert cells(name)[column].startswith(wanted), name


def test_a_field_of_one_api_has_no_words_for_the_other() -> None:
    assert cells("messages") == ["same", "– |"] and cells("suffix")[0] == "–"


def test_a_route_is_the_same_exactly_if_it_is_served() -> None:
    served = {one.path for one in PATHS}
    for path, lacking in VLLM_ROUTES.items():
        assert cells(path)[0].startswith("same" if path in served else f"missing: {lacking}"), path
        assert path in served or lacking, path


def test_every_metric_that_is_the_same_is_in_the_operators_page() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    names = [name for line in LINES if line.endswith("| same |") for name in re.findall(r"`(vllm:\w+)`", line)]
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"`{name}(?:_total)?`", text)] == []


def test_every_row_has_the_cells_of_its_table() -> None:
    columns = 0
    for line in LINES:
        columns = (columns or line.count("|")) if line.startswith("|") else 0
        assert not columns or line.count("|") == columns, line
