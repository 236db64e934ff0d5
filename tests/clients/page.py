"""Reads docs/grpc.md: the commands, the programs and their output, by section. Imports only the standard library."""

import re
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc.md"
INSTALL = ("pip install", "npm install")  # an environment has what these commands install


@dataclass
class Section:
    """`files`: name -> program. `commands`: of its bash blocks, in order, each with the output that the page shows for
    it, or None. `packages`: what its commands install."""

    files: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, str | None]] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


def sections(page: Path = PAGE) -> dict[str, Section]:
    """Returns the sections by their headings. A program follows its name; an output follows the programs of a block."""
    found: dict[str, Section] = {}
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL):
        found[heading] = _section(body)
    return found


def _section(body: str) -> Section:
    section = Section()
    waiting: list[int] = []  # commands of the last bash block
    for before, language, text in re.findall(r"([^\n]*)\n\n```(\w+)\n(.*?)```", f"\n{body}", re.DOTALL):
        named = re.fullmatch(r"`([\w.]+)`:", before)
        if named:
            section.files[named.group(1)] = text
        elif language == "bash":
            waiting = _add_commands(section, text)
        elif before == "It prints:":
            for index in waiting:
                command = section.commands[index][0]
                if any(name in command.split() for name in section.files):
                    section.commands[index] = (command, text)
    return section


def _add_commands(section: Section, text: str) -> list[int]:
    """Returns the indices of the new commands."""
    before = len(section.commands)
    for line in text.splitlines():
        if line.startswith(INSTALL):
            section.packages += [word for word in line.split()[2:] if not word.startswith("-")]
        else:
            section.commands.append((line, None))
    return list(range(before, len(section.commands)))
