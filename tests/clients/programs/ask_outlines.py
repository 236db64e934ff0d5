"""outlines on OpenAI's client: as a vLLM server, by `structured_outputs`, and as OpenAI, by response_format."""

from typing import Literal

import openai
import outlines
from forms import QUESTION, asking_for, check_text
from outlines.types import CFG, Regex
from pydantic_forms import Report
from report import API_KEY, MODEL, SECONDS, check, main, task

OPTIONS = {"temperature": 0, "max_tokens": 300}
LARK = 'start: "It is " ("sunny" | "rainy") "."'


def client(url):
    return openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)


def as_vllm(output_type):
    with asking_for("structured_outputs") as url:
        return outlines.from_vllm(client(url), MODEL)(QUESTION, output_type, **OPTIONS)


@task
def class_as_vllm():
    check_text(as_vllm(Report))


@task
def choice_as_vllm():
    check(as_vllm(Literal["sunny", "rainy"]) in ("sunny", "rainy"), "the text is none of the choices")


@task
def integer_as_vllm():
    int(as_vllm(int))


@task
def regex_as_vllm():
    text = as_vllm(Regex("[a-c]{3}-[0-9]{2}"))
    check(len(text) == 6 and text[3] == "-", f"the text is {text!r}")


@task
def grammar_as_vllm():
    check(as_vllm(CFG(LARK)) in ("It is sunny.", "It is rainy."), "the text is not of the grammar")


@task
def class_as_vllm_streamed():
    with asking_for("structured_outputs") as url:
        check_text("".join(outlines.from_vllm(client(url), MODEL).stream(QUESTION, Report, **OPTIONS)))


@task
def class_as_openai():
    with asking_for("response_format") as url:
        check_text(outlines.from_openai(client(url), MODEL)(QUESTION, Report, **OPTIONS))


main()
