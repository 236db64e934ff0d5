"""langchain-openai: ChatOpenAI, the older OpenAI, which sends completions, and the agents of langchain_tools.py."""

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_forms import FORM_TASKS
from langchain_openai import ChatOpenAI, OpenAI
from langchain_tools import TOOL_TASKS
from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    PROMPT,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    SECONDS,
    TASKS,
    URL,
    check,
    check_logprobs,
    check_usage,
    equal,
    main,
    task,
)

COMMON = {"model": MODEL, "base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}


def model(**fields):
    return ChatOpenAI(**COMMON | {"temperature": 0} | fields)


def check_message(message, wanted=ANSWER):
    equal((message.content, message.tool_calls), (wanted, []), "the message")
    equal(message.response_metadata["finish_reason"], "stop", "finish_reason")
    usage = message.usage_metadata
    check_usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])


@task
def plain_chat():
    message = model().invoke(QUESTION)
    equal(type(message), AIMessage, "the type")
    check_message(message)


@task
def chat_stream():
    chunks = list(model(stream_usage=True).stream(QUESTION))
    check(len(chunks) > 2 and all(isinstance(chunk, AIMessageChunk) for chunk in chunks), f"chunks {chunks}")
    whole = sum(chunks[1:], chunks[0])
    check_message(whole)


@task
async def async_chat_stream():
    chunks = [chunk async for chunk in model().astream(QUESTION)]
    equal("".join(chunk.content for chunk in chunks), ANSWER, "the text")


@task
def chat_logprobs():
    message = model(logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = message.response_metadata["logprobs"]["content"]
    check_logprobs((entry["logprob"] for entry in entries), message.usage_metadata["output_tokens"])


@task
def chat_stream_logprobs():
    chunks = list(model(logprobs=True, stream_usage=True).stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    entries = whole.response_metadata["logprobs"]["content"]
    check_logprobs((entry["logprob"] for entry in entries), whole.usage_metadata["output_tokens"])


@task
def second_turn():
    first = model().invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    turns = [SystemMessage("Be brief."), HumanMessage(QUESTION), first, HumanMessage(SECOND_QUESTION)]
    check_message(model().invoke(turns), SECOND_ANSWER)


@task
def batch():
    texts = [message.content for message in model().batch([QUESTION, SECOND_QUESTION, QUESTION])]
    equal(texts, [ANSWER, SECOND_ANSWER, ANSWER], "the texts")


@task
def fields_at_their_defaults():
    fields = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_p": 1, "logprobs": False, "logit_bias": {}}
    fields |= {"service_tier": "auto", "store": False, "metadata": {}, "reasoning_effort": "none", "verbosity": "low"}
    check_message(model(**fields).bind(parallel_tool_calls=True, user="someone").invoke(QUESTION))


@task
def plain_completion():
    result = OpenAI(**COMMON, temperature=0, max_tokens=40).generate([PROMPT])
    equal(result.generations[0][0].text, ANSWER, "the text")
    usage = result.llm_output["token_usage"]
    check_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


@task
def completion_stream():
    equal("".join(OpenAI(**COMMON, temperature=0, max_tokens=40).stream(PROMPT)), ANSWER, "the text")


@task
def completion_logprobs():
    result = OpenAI(**COMMON, temperature=0, max_tokens=40, logprobs=2).generate([PROMPT])
    logprobs = result.generations[0][0].generation_info["logprobs"]
    check_logprobs(logprobs["token_logprobs"], result.llm_output["token_usage"]["completion_tokens"])


@task
def too_long_a_context():
    """LangChain knows this error by the code, and its middleware shortens the history then."""
    try:
        model().invoke(QUESTION * 999)
    except Exception as error:
        check(isinstance(error, ContextOverflowError), f"not a ContextOverflowError: {error!r}")
    else:
        check(False, "no error")


@task
def wrong_base_url():
    """Without /v1, the error names the route: LangChain calls every 404 a missing model."""
    try:
        model(base_url=URL).invoke(QUESTION)
    except Exception as error:
        check("/chat/completions" in str(error), f"the error does not name the route: {error!r}")
    else:
        check(False, "no error")


TASKS |= TOOL_TASKS | FORM_TASKS

main()
