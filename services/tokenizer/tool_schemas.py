"""Fills the fields of tools that OpenAI's clients may leave out and some chat templates read all the same."""

from typing import Any

Tool = dict[str, Any]


def filled(tools: list[Tool]) -> list[Tool]:
    """Returns the tools with a description, and parameters with properties and required names, where they had none.

    Agents leave these out for functions without arguments. What is there, stays, also what no schema allows.
    """
    return [_filled(tool) for tool in tools]


def _filled(tool: Tool) -> Tool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object"}
    if isinstance(parameters, dict):
        parameters = {"properties": {}, "required": [], **_without_null(parameters)}
    return {**tool, "function": {"description": "", **_without_null(function), "parameters": parameters}}


def _without_null(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
