"""catalog: the built-in tables by vLLM's names; another table takes the place of those with its names."""

import tomllib
from pathlib import Path

import msgspec

from services.tokenizer.parsing.catalog import TABLES, built_in

ROOT = Path(__file__).parents[3]
TOOLS = {
    "hermes", "qwen3_coder", "qwen3_xml", "mistral", "llama3_json", "llama4_json", "pythonic", "granite",
    "phi4_mini_json", "glm45", "glm47", "minimax_m2", "openai",
}  # fmt: skip
REASONING = {"qwen3", "deepseek_r1", "granite", "mistral", "openai_gptoss", "glm45", "minimax_m2", "seed_oss"}


def test_the_names() -> None:
    assert built_in().tools.keys() >= TOOLS
    assert built_in().reasoning.keys() >= REASONING
    assert all(name in table.tools for name, table in built_in().tools.items())
    assert all(name in table.reasoning for name, table in built_in().reasoning.items())


def test_no_two_files_have_the_same_name() -> None:
    files = len(list(TABLES.glob("*.toml")))
    assert len({id(table) for table in (*built_in().tools.values(), *built_in().reasoning.values())}) == files


def test_another_table_takes_the_place_of_those_with_its_names() -> None:
    hermes = built_in().tools["hermes"]
    table = msgspec.structs.replace(hermes, tools=("qwen3_xml", "mine"), reasoning=())
    catalog = built_in().with_table(table)
    assert catalog.tools["qwen3_xml"] is catalog.tools["mine"] is table
    assert catalog.tools["qwen3_coder"] is built_in().tools["qwen3_coder"] is built_in().tools["qwen3_xml"]
    assert catalog.reasoning == built_in().reasoning


def test_a_wheel_has_the_tables() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = {file for pattern in settings["package-data"]["services"] for file in (ROOT / "services").glob(pattern)}
    assert len({*TABLES.glob("*.toml")}) > 10
    assert files >= {*TABLES.glob("*.toml")}
