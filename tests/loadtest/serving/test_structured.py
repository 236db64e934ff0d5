"""The forms of --structured-output: what is sent, to which requests, and that no answer ends before its length."""

import json
from typing import Any

import numpy as np
import pytest

from loadtest.serving.structured import CHOICES, FORMS, fields, structured_requests
from loadtest.serving.workloads import Request
from services.rpc.generated import text_pb2
from services.tokenizer.structured.content import content_fragment
from tests.grammar.vocabularies import demo_tokens
from tests.loadtest.serving.bench_process import bench
from tests.loadtest.serving.other_server import OtherServer
from tests.structured.walk import random_answer

SMALL = ("--num-prompts=4", "--random-input-len=8", "--random-output-len=5")


def bodies(*flags: str) -> list[dict[str, Any]]:
    with OtherServer() as server:
        done = bench(f"--base-url={server.url}", *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    return list(server.bodies)


def test_json_is_sent_as_every_server_takes_it() -> None:
    sent = bodies("--structured-output=json")
    assert {body["response_format"]["type"] for body in sent} == {"json_schema"}
    assert len({json.dumps(body["response_format"]) for body in sent}) == 1


def test_a_share_of_the_requests_has_the_form() -> None:
    sent = bodies("--structured-output=regex", "--structured-output-ratio=0.5")
    assert ["structured_outputs" in body for body in sent].count(True) == 2


def test_unique_schemas_differ() -> None:
    sent = structured_requests([Request((1,), 1, 8)] * 4, "json-unique")
    assert len({json.dumps(request.fields) for request in sent}) == 4


def test_without_a_form_nothing_is_added() -> None:
    requests = [Request((1,), 1, 8)]
    assert structured_requests(requests, None) == requests
    assert not structured_requests(requests, "json", 0.0)[0].fields


def structured(form: str, output_len: int) -> text_pb2.StructuredOutput:
    made = text_pb2.StructuredOutput(strict=True, field="form")
    body = fields(form, output_len, 0)
    if "response_format" in body:
        made.json_schema = json.dumps(body["response_format"]["json_schema"]["schema"]).encode()
        return made
    ((name, value),) = body["structured_outputs"].items()
    if name == "choice":
        made.choices.texts.extend(value)
    else:
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("output_len", [16, 300, 2048])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "choice"])
def test_no_answer_ends_before_its_length(form: str, output_len: int) -> None:
    grammar = content_fragment(structured(form, output_len)).fragment.text
    answer = random_answer(demo_tokens(), grammar, np.random.default_rng(1), output_len)
    assert (len(answer.token_ids), answer.is_complete, answer.error) == (output_len, False, "")


def test_a_choice_ends_an_answer() -> None:
    grammar = content_fragment(structured("choice", 300)).fragment.text
    answer = random_answer(demo_tokens(), grammar, np.random.default_rng(1), 300)
    assert answer.text.decode() in CHOICES
