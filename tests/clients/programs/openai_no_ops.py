"""Every field of OpenAI's pages that changes nothing here, sent by OpenAI's Python client: a task for each."""

from functools import partial

from openai_calls import chat, check_answer, complete
from report import ANSWER, equal

# Each field alone, with a value that changes no answer: its default, or something that this server has no use for.
CHAT_NO_OPS = {
    "audio": None,
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": False,
    "metadata": {"client": "openai"},
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": ANSWER},
    "presence_penalty": 0,
    "prompt_cache_key": "key",
    "prompt_cache_retention": "in_memory",
    "reasoning_effort": "none",
    "response_format": {"type": "text"},
    "safety_identifier": "someone",
    "service_tier": "auto",
    "stop": None,
    "store": False,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1,
    "user": "someone",
    "verbosity": "medium",
}
COMPLETION_NO_OPS = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "n": 1,
    "presence_penalty": 0,
    "stop": None,
    "suffix": None,
    "top_p": 1,
    "user": "someone",
}


def chat_no_op(name, value):
    check_answer(chat(**{name: value}))


def completion_no_op(name, value):
    equal(complete(**{name: value}).choices[0].text, ANSWER, "the text")


def all_chat_no_ops():
    check_answer(chat(**CHAT_NO_OPS))


def all_completion_no_ops():
    equal(complete(**COMPLETION_NO_OPS).choices[0].text, ANSWER, "the text")


NO_OP_TASKS = {
    **{f"chat with {name}": partial(chat_no_op, name, value) for name, value in CHAT_NO_OPS.items()},
    **{f"completion with {name}": partial(completion_no_op, name, value) for name, value in COMPLETION_NO_OPS.items()},
    "chat with all of these": all_chat_no_ops,
    "completion with all of these": all_completion_no_ops,
}
