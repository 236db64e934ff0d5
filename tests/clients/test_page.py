"""docs/grpc.md says what the code does, and the clients type all of it."""

import re

from google.rpc import error_details_pb2

from services.rpc.errors import STATUS, TandemError
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.status import details
from tests.clients.catalogue import CLIENTS, NpmClient, PipClient
from tests.clients.page import INSTALL, PAGE, sections

MAX_LINE = 120
ELSEWHERE = {"Addresses", "Gateways"}  # edges.py and front_smg.py start servers with the commands of these sections
TYPED = {section: client for client in CLIENTS for section in client.sections}


def test_a_client_types_every_command_of_the_page() -> None:
    found = sections()
    with_commands = {heading for heading, section in found.items() if section.commands}
    assert with_commands == {*TYPED, *ELSEWHERE}
    num_commands = len(re.findall(r"^(?:python|node) ", PAGE.read_text(), re.MULTILINE))
    assert num_commands == sum(
        command.startswith(("python", "node")) for one in found.values() for command, _ in one.commands
    )


def test_every_program_is_run_and_nearly_every_output_is_compared() -> None:
    typed = [(heading, command, output) for heading in TYPED for command, output in sections()[heading].commands]
    for heading in TYPED:
        for name in sections()[heading].files:
            assert [command for where, command, _ in typed if where == heading and name in command.split()], name
    without = [command for _, command, output in typed if output is None]
    assert [command.split()[1] for command in without] == ["-m", "resume.py"]


def test_environments_have_what_the_page_installs() -> None:
    for heading, client in TYPED.items():
        packages = sections()[heading].packages
        if isinstance(client, PipClient) and packages:
            assert sorted(packages) == sorted(one.partition("==")[0] for one in client.requirements)
        elif isinstance(client, NpmClient):
            assert client.package in packages and all(
                package in client.pins.joinpath("package.json").read_text() for package in packages
            )
    assert all(word in PAGE.read_text() for word in INSTALL)


def rows() -> dict[str, str]:
    """Returns status -> the rest of its row, of the table of statuses."""
    _, _, text = PAGE.read_text().partition("\n## Statuses\n")
    table = re.findall(r"^\| (`[A-Z_`, ]+`) \|(.*)", text.partition("\n## ")[0], re.MULTILINE)
    return {name: rest for names, rest in table for name in re.findall(r"\w+", names)}


def test_the_table_of_statuses_is_that_of_the_code() -> None:
    found = rows()
    # Statuses that no error of a request has.
    of_grpc = {"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN"}
    assert found.keys() == {status.grpc for status in STATUS.values()} | of_grpc
    for code, status in STATUS.items():
        named = {type(one).__name__ for one in details(TandemError(code, "text"), "field")}
        shown = {name for name in dir(error_details_pb2) if f"`{name}`" in found[status.grpc]}
        assert shown - {"ErrorInfo"} == named - {"ErrorInfo"}, code
    assert "`ErrorInfo`" in found["INVALID_ARGUMENT"]


def test_the_page_names_every_method() -> None:
    text = PAGE.read_text()
    services = (text_pb2.DESCRIPTOR, engine_pb2.DESCRIPTOR)
    methods = {method.name for file in services for one in file.services_by_name.values() for method in one.methods}
    assert sorted(name for name in methods if f"{name}`" not in text) == []


def test_lines_have_an_ordinary_length() -> None:
    assert [line for line in PAGE.read_text().splitlines() if len(line) > MAX_LINE] == []
