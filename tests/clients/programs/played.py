"""Scripts for the worker that plays given tokens (player.py): a part of a user's message says what the answers are.

Imports only the standard library.
"""

import base64
import json
import re

SCRIPT = re.compile(r"play:([\w=-]+)")


def script(*answers: str) -> str:
    """Returns what a user's message must have so that the worker answers so, a turn after the other.

    `{result}` in an answer becomes the last tool result of its prompt.
    """
    return "play:" + base64.urlsafe_b64encode(json.dumps(answers).encode()).decode()


def call(name: str, **arguments: object) -> str:
    """Returns a tool call in Hermes format, which the demo's chat template asks for."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted(prompt: str) -> tuple[list[str], int] | None:
    """Returns (the answers of the script in a prompt, where its text ends); None without one."""
    found = SCRIPT.search(prompt)
    if found is None:
        return None
    return json.loads(base64.urlsafe_b64decode(found.group(1))), found.end()
