"""Calls of OpenAI's Python client to the server, and the check of a whole chat answer."""

import openai
from openai.types.chat import ChatCompletion
from report import ANSWER, API_KEY, BASE_URL, MODEL, PROMPT, QUESTION, SECONDS, check, check_usage, equal

CLIENT = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=SECONDS)
MESSAGES = [{"role": "user", "content": QUESTION}]


def chat(**fields):
    fields = {"messages": MESSAGES, "temperature": 0} | fields
    return CLIENT.chat.completions.create(model=MODEL, **fields)


def complete(**fields):
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40} | fields
    return CLIENT.completions.create(model=MODEL, **fields)


def check_answer(answer, wanted=ANSWER):
    equal(type(answer), ChatCompletion, "the type")
    (choice,) = answer.choices
    found = (answer.object, answer.model, choice.index, choice.message.role, choice.message.content)
    equal(found, ("chat.completion", MODEL, 0, "assistant", wanted), "the answer")
    equal(choice.finish_reason, "stop", "finish_reason")
    message = choice.message
    equal((message.refusal, message.tool_calls, message.function_call), (None, None, None), "what is not content")
    check(answer.id.startswith("chatcmpl-") and answer.created > 0, f"id {answer.id}, created {answer.created}")
    check_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
