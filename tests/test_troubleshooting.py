"""Every text that docs/troubleshooting.md explains is in the code, so that a reader who searches for it finds it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("services", "engine_core", "kernels", "loadtest")
VALUE = "\0"  # stands for a value in a text of the code
FORMAT = re.compile(r"%(?:\.\d+)?[dfgsr]")
FIRST_CELL = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def texts(tree: ast.AST) -> list[str]:
    """Every string of a module, with VALUE for what is filled in."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.extend({node.value, FORMAT.sub(VALUE, node.value)})
    return found


def documentation(tree: ast.AST) -> set[str]:
    """The docstrings of a module: what only they say, no operator sees."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
    return {ast.get_docstring(node, clean=False) or "" for node in nodes}


def logged_texts() -> list[str]:
    """Every string of the code that is no docstring."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = documentation(tree)
        found += [text for text in texts(tree) if text not in docstrings]
    return found


def test_every_text_is_in_the_code() -> None:
    cells = FIRST_CELL.findall((ROOT / "docs" / "troubleshooting.md").read_text())
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 50
    patterns = {text: re.compile(".*".join(map(re.escape, text.split("…"))), re.DOTALL) for text in quoted}
    sources = logged_texts()
    missing = [text for text, pattern in patterns.items() if not any(map(pattern.search, sources))]
    assert missing == []
