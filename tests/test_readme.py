"""The README names every option and every request field, and nothing tracked names a path of one machine."""

import re
import subprocess
from pathlib import Path

from services.options.commands import flag_of, serve_settings
from services.shim.schema import ChatRequest, CompletionRequest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
REFUSED_SO_FAR = {"tool_choice", "response_format"}  # only their neutral value is accepted
SHOWN_IN_EXAMPLES = {"model", "messages", "prompt", "stream", "add_special_tokens"}


def test_every_option_stands_in_the_readme() -> None:
    settings = serve_settings()
    flags = [name.upper() if one.positional else flag_of(name) for name, one in settings.items()]
    assert [flag for flag in flags if f"`{flag}`" not in README] == []


def test_every_request_field_stands_in_the_readme() -> None:
    fields = (ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()) - REFUSED_SO_FAR
    fields -= SHOWN_IN_EXAMPLES
    assert sorted(name for name in fields if f"`{name}" not in README) == []


def test_every_file_that_the_documents_name_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for name in re.findall(
            r"\b(?:tests|docs|protos|services|engine_core|kernels|demo)/[\w./-]+\.(?:py|md|proto)", document.read_text()
        ):
            assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    found = subprocess.run(
        ["git", "grep", "-nIF", str(ROOT) + "/"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert found.stdout == ""
