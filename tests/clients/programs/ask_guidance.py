"""guidance, as its model of a vLLM server, whose grammars go as they are, and as OpenAI's, which has JSON only."""

import guidance
from forms import QUESTION, SCHEMA, asking_for, check_text
from guidance import assistant, gen, models, select, user
from guidance.models.experimental import VLLMModel
from report import API_KEY, MODEL, SECONDS, check, main, task

LIMITS = {"max_retries": 0, "timeout": SECONDS}


def asked(model):
    with user():
        return model + QUESTION


def answered(model, form):
    with assistant():
        return model + form


def as_vllm(url):
    return asked(VLLMModel(MODEL, echo=False, base_url=url, api_key=API_KEY))


@task
def select_as_vllm():
    with asking_for("structured_outputs") as url:
        found = answered(as_vllm(url), select(["sunny", "rainy, with wind"], name="sky"))
    check(found["sky"] in ("sunny", "rainy, with wind"), f"the choice is {found['sky']!r}")


@task
def regex_as_vllm():
    with asking_for("structured_outputs") as url:
        found = answered(as_vllm(url), "It has " + gen("degrees", regex="[1-3][0-9]") + " degrees.")
    check(10 <= int(found["degrees"]) < 40, f"the number is {found['degrees']!r}")


@task
def json_as_vllm():
    with asking_for("structured_outputs") as url:
        found = answered(as_vllm(url), guidance.json(name="report", schema=SCHEMA))
    check_text(found["report"])


@task
def json_as_openai():
    with asking_for("response_format") as url:
        model = asked(models.OpenAI(MODEL, echo=False, base_url=url, api_key=API_KEY, **LIMITS))
        found = answered(model, guidance.json(name="report", schema=SCHEMA))
    check_text(found["report"])


main()
