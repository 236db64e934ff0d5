"""dspy.LM and Predict, whole and streamed. The demo model is too small for dspy's formats; an adapter uses none."""

import dspy
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
    check_logprobs,
    check_usage,
    equal,
    main,
    task,
)


def model(**fields):
    common = {"api_base": BASE_URL, "api_key": API_KEY, "cache": False, "num_retries": 0, "timeout": SECONDS}
    return dspy.LM(f"openai/{MODEL}", **common | {"temperature": 0, "max_tokens": 40} | fields)


def last_usage(lm):
    return lm.history[-1]["usage"]


@task
def plain_chat():
    lm = model()
    equal(lm(QUESTION), [ANSWER], "the outputs")
    usage = last_usage(lm)
    check_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


@task
def chat_with_dspys_defaults():
    lm = dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, cache=False, num_retries=0)
    equal(lm(QUESTION), [ANSWER], "the outputs")


@task
async def async_chat():
    equal(await model().acall(QUESTION), [ANSWER], "the outputs")


class Plain(dspy.Adapter):
    """Asks the question as it is, and takes the text as the answer."""

    def format(self, signature, demos, inputs):
        return [{"role": "user", "content": inputs["question"]}]

    def parse(self, signature, completion):
        return {"answer": completion}


@task
def predict():
    with dspy.context(lm=model(), adapter=Plain(), track_usage=True):
        prediction = dspy.Predict("question -> answer")(question=QUESTION)
    equal(prediction.answer, ANSWER, "the answer")
    (usage,) = prediction.get_lm_usage().values()
    check_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


@task
async def chat_stream():
    ask = dspy.streamify(dspy.Predict("question -> answer"))
    with dspy.context(lm=model(), adapter=Plain(), track_usage=True):
        items = [item async for item in ask(question=QUESTION)]
    *chunks, prediction = items
    equal(prediction.answer, ANSWER, "the answer")
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    equal("".join(texts), ANSWER, "the deltas")


@task
def chat_logprobs():
    lm = model(logprobs=True, top_logprobs=2)
    (output,) = lm(QUESTION)
    equal(output["text"], ANSWER, "the text")
    check_logprobs((entry.logprob for entry in output["logprobs"].content), last_usage(lm)["completion_tokens"])


@task
def second_turn():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    (first,) = model()(messages=messages)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": SECOND_QUESTION}]
    equal(model()(messages=messages), [SECOND_ANSWER], "the outputs")


@task
def many_choices():
    outputs = model(temperature=1.0)(QUESTION, n=3)
    equal(len(outputs), 3, "the number of outputs")


@task
def plain_completion():
    """dspy puts its own frame around a text prompt, so no answer is known; the same prompt gives the same text."""
    lm = model(model_type="text")
    texts = {lm(PROMPT)[0] for _ in range(2)}
    equal(len(texts), 1, "the number of texts at temperature 0")
    usage = last_usage(lm)
    check_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


@task
def completion_logprobs():
    lm = model(model_type="text", logprobs=2)
    (output,) = lm(PROMPT)
    check_logprobs(output["logprobs"].token_logprobs, last_usage(lm)["completion_tokens"])


main()
