"""instructor on OpenAI's client: a class by calls, by response_format and by a prompt; also streamed."""

from functools import partial

import instructor
import openai
from forms import MESSAGES, asking_for, asking_for_calls, named
from instructor import Mode
from instructor.core import InstructorRetryException
from pydantic_forms import Report, check_instance
from report import API_KEY, MODEL, SECONDS, TASKS, check, main, task

OPTIONS = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 300, "max_retries": 0}


def client(url, mode):
    plain = openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)
    return instructor.from_openai(plain, mode=mode)


def by_mode(mode, field):
    with asking_for(field) as url:
        check_instance(client(url, mode).create(response_model=Report, **OPTIONS))


for mode, field in (
    (Mode.TOOLS, "tool_choice"),
    (Mode.TOOLS_STRICT, "tool_choice"),
    (Mode.JSON_SCHEMA, "response_format"),
):
    TASKS[f"class by {mode.value}"] = partial(by_mode, mode, field)


@task
def class_by_a_named_call():
    with asking_for_calls(named("Report")) as url:
        check_instance(client(url, Mode.TOOLS).create(response_model=Report, **OPTIONS))


@task
def class_streamed():
    """Partial objects have the fields so far; the last one has all."""
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        with asking_for("tool_choice", "response_format") as url:
            *_, last = parts = list(client(url, mode).create_partial(response_model=Report, **OPTIONS))
        check(len(parts) > 2, f"{len(parts)} parts")
        check_instance(Report.model_validate(last.model_dump()))


@task
def json_mode():
    """It asks for any object, with the schema in the prompt only: whether the values fit is the model's business."""
    with asking_for("response_format") as url:
        try:
            client(url, Mode.JSON).create(response_model=Report, **OPTIONS)
        except InstructorRetryException as error:
            text = error.last_completion.choices[0].message.content
            check(text.lstrip().startswith("{"), f"the text is {text!r}")


main()
