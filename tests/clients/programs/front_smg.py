"""SMG's gateway in front of tandem: the answers of its OpenAI API are those of tandem's own.

What does not pass SMG is left out: `logit_bias`, chat's `min_tokens`, the logprobs of completions. Where its default is
another than tandem's (completions' max_tokens), the request has a value.
"""

import re
import struct
from concurrent.futures import ThreadPoolExecutor

from forms import MESSAGES as FORM_MESSAGES
from forms import RESPONSE_FORMAT, SCHEMA, check_text
from report import ANSWER, MODEL, PROMPT, QUESTION, SECOND_QUESTION, URL, check, equal, main, task
from smg_gateway import Smg, ask, events, fetch, gauge, kill, send, wait_for, with_tokenizer

SMG = with_tokenizer()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": QUESTION}]
REFUSED = {"name": "report", "schema": SCHEMA | {"not": {"required": ["other"]}}}
END = "<|im_end|>"
LONG = {"max_tokens": 1500, "ignore_eos": True}
AT_ONCE = 32
# Under ignore_eos the model goes on behind its answer, with thoughts. REST separates them and the whitespace around
# them; SMG passes them on, or leaves them out and keeps the whitespace.
THOUGHT = re.compile(r"\s*<think>.*?(?:</think>\s*|$)|\s+$", re.DOTALL)
# Requests that SMG passes on, and in which greedy and seeded answers must be those of REST.
FIELDS = {
    "greedy": {"temperature": 0},
    "the model's defaults": {},
    "seeded": {"temperature": 1.2, "seed": 7, "ignore_eos": True},
    "truncated": {"temperature": 1.5, "seed": 8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "ignore_eos": True},
    "all tokens": {"temperature": 1.5, "seed": 8, "top_k": -1, "ignore_eos": True},
    "penalties": {
        "temperature": 1, "seed": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.25,
        "ignore_eos": True,
    },
    "two choices": {"n": 2, "temperature": 1.2, "seed": 10, "ignore_eos": True},
    "a stop text": {"temperature": 0, "stop": ["5", "no such text"]},
}  # fmt: skip


def body(path, max_tokens=40, question=QUESTION, **fields):
    if path == TEXT:
        return {"prompt": PROMPT.replace(QUESTION, question), "max_tokens": max_tokens, **fields}
    return {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens, **fields}


def seen(answer):
    """Returns what must be equal: texts, finish reasons, and the numbers of tokens."""
    choices = [
        (THOUGHT.sub("", one["message"]["content"]) if "message" in one else one["text"], one["finish_reason"])
        for one in sorted(answer["choices"], key=lambda one: one["index"])
    ]
    return choices, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def folded(chunks):
    """Returns `seen` of the answer that the chunks of a stream add up to."""
    texts, reasons, usage, is_chat = {}, {}, None, False
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for one in chunk["choices"]:
            is_chat = "delta" in one
            text = one["delta"].get("content") if is_chat else one["text"]
            texts[one["index"]] = texts.get(one["index"], "") + (text or "")
            reasons[one["index"]] = one.get("finish_reason") or reasons.get(one["index"])
    cleaned = {index: THOUGHT.sub("", text) if is_chat else text for index, text in texts.items()}
    choices = [(cleaned[index], reasons[index]) for index in sorted(cleaned)]
    return choices, usage["prompt_tokens"], usage["completion_tokens"]


def streamed(url, path, **fields):
    return folded(events(url, path, stream_options={"include_usage": True}, **fields))


def compare(path):
    for name, fields in FIELDS.items():
        expected = seen(ask(URL, path, **body(path, **fields)))
        equal(seen(ask(SMG.url, path, **body(path, **fields))), expected, f"{name}: the answer")
        equal(streamed(SMG.url, path, **body(path, **fields)), expected, f"{name}: the stream")


@task
def chat():
    answer = ask(SMG.url, CHAT, messages=MESSAGES, temperature=0)
    equal(answer["choices"][0]["message"]["content"], ANSWER, "the text")
    compare(CHAT)


@task
def completions():
    compare(TEXT)


@task
def logprobs_of_chat():
    """The first answers are cut, the second come to their end."""
    for max_tokens in (8, 40):
        fields = body(CHAT, max_tokens, logprobs=True, top_logprobs=3, temperature=1.2, seed=7, n=2)
        expected = entries(ask(URL, CHAT, **fields)["choices"])
        equal(entries(ask(SMG.url, CHAT, **fields)["choices"]), expected, "the logprobs")
        equal(entries(choices_with_logprobs(events(SMG.url, CHAT, **fields))), expected, "the stream's logprobs")


def entries(choices):
    """Returns the entries of each choice but that of an end token: SMG leaves it out of whole answers, and of streams
    where it comes with other tokens."""
    ordered = sorted(choices, key=lambda one: one["index"])
    found = [list(map(in_float32, one["logprobs"]["content"])) for one in ordered]
    return [one[:-1] if one[-1][0] == END else one for one in found]


def in_float32(entry):
    """Returns an entry with logprobs as SMG has them: rounded to float32."""
    top = [(one["token"], float32(one["logprob"])) for one in entry["top_logprobs"]]
    return entry["token"], float32(entry["logprob"]), entry["bytes"], top


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def choices_with_logprobs(chunks):
    found = {}
    for one in (one for chunk in chunks for one in chunk["choices"]):
        found.setdefault(one["index"], []).extend((one.get("logprobs") or {}).get("content") or [])
    return [{"index": index, "logprobs": {"content": content}} for index, content in found.items()]


@task
def answers_in_a_form():
    for form in (RESPONSE_FORMAT, {"type": "json_object"}):
        asked = {"messages": FORM_MESSAGES, "max_tokens": 600, "temperature": 0, "response_format": form}
        status, answer = fetch(SMG.url, CHAT, {"model": MODEL, **asked})
        equal(status, 200, f"the status, with the answer {answer},")
        text = answer["choices"][0]["message"]["content"]
        check_text(text) if form is RESPONSE_FORMAT else check(text.lstrip().startswith("{"), f"the text is {text!r}")


@task
def refusals_name_the_field():
    for fields, status, name in (
        ({"response_format": {"type": "json_schema", "json_schema": REFUSED}}, 400, "json_schema"),
        ({"n": 100000}, 400, "n"),
        ({"messages": [{"role": "user", "content": QUESTION * 999}]}, 400, "maximum context length"),
    ):
        found, answer = fetch(SMG.url, CHAT, {"model": MODEL, **body(CHAT), **fields})
        equal(found, status, f"the status of {list(fields)}")
        check(name in str(answer), f"the answer is {answer}")


@task
def hang_ups_free_their_blocks():
    for path in (CHAT, TEXT):
        for stream in (True, False):
            hung_up = [start(path, stream) for _ in range(4)]
            wait_for(lambda: gauge("vllm:num_requests_running") == 4, "all run")
            for connection in hung_up:
                connection.close()
            wait_for(lambda: gauge("vllm:num_requests_running") == 0, f"{path}, stream {stream}: none runs", 3)
            equal(gauge("vllm:kv_cache_usage_perc"), 0, "the blocks in use")


def start(path, stream):
    """Sends a request with a long answer. Returns the connection, on which nothing more is read."""
    return send(SMG.url, "POST", path, {"model": MODEL, "stream": stream, **body(path), **LONG})


def requests(**fields):
    """Returns AT_ONCE different requests, half of each path, streamed and whole."""
    questions = [f"{QUESTION} {number}" if number % 3 else f"{SECOND_QUESTION} {number}" for number in range(AT_ONCE)]
    return [
        (CHAT if number % 2 else TEXT, number % 4 < 2, body(CHAT if number % 2 else TEXT, question=one, **fields))
        for number, one in enumerate(questions)
    ]


def answer_of(url, path, stream, fields):
    return streamed(url, path, **fields) if stream else seen(ask(url, path, **fields))


def all_at_once(url, asked):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda one: answer_of(url, *one), asked))


@task
def many_at_once():
    asked = requests(temperature=0, max_tokens=60)
    equal(all_at_once(SMG.url, asked), all_at_once(URL, asked), "the answers")


@task
def workers_and_loads_are_true():
    worker = fetch(SMG.url, "/workers")[1]["workers"][0]
    check(worker["is_healthy"] and worker["runtime_type"] == "vllm", f"the worker is {worker}")
    equal(worker["labels"]["max_num_seqs"], "128", "max_num_seqs")

    def load():
        return fetch(SMG.url, "/get_loads")[1]["loads"][0]

    wait_for(lambda: load()["num_total_reqs"] == 0, "it is idle")
    connections = [start(CHAT, True) for _ in range(3)]
    wait_for(lambda: load()["num_running_reqs"] == 3, "three run")
    busy = wait_for(lambda: (now := load())["gen_throughput"] > 0 and now, "a throughput")
    check(0 < busy["num_used_tokens"] < busy["max_total_num_tokens"], f"the load is {busy}")
    for connection in connections:
        connection.close()
    wait_for(lambda: (now := load())["num_total_reqs"] == now["num_used_tokens"] == 0, "it is idle again")


@task
def killed_processes_lose_nothing():
    """Under load; SMG goes on to see a healthy worker."""
    asked = requests(**LONG | {"max_tokens": 800}, temperature=0)
    expected = all_at_once(URL, asked)
    for role in ("engine", "worker", "tokenizer"):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = [pool.submit(answer_of, SMG.url, *one) for one in asked]
            wait_for(lambda: gauge("vllm:num_requests_running") == AT_ONCE, "all run")
            check(kill(role), f"there is no {role}")
            while not all(answer.done() for answer in answers):
                workers = fetch(SMG.url, "/workers")[1]["workers"]
                check([one["is_healthy"] for one in workers] == [True], f"{role} killed: the workers are {workers}")
            equal([answer.result() for answer in answers], expected, f"{role} killed: the answers")


@task
def its_tokenizer_comes_from_tandem():
    """Without --model-path SMG takes the tokenizer's files from its worker."""
    other = Smg()
    try:
        asked = {"model": MODEL, **body(CHAT)}
        _, answer = wait_for(lambda: (found := fetch(other.url, CHAT, asked))[0] == 200 and found, "an answer")
        equal(answer["choices"][0]["message"]["content"], ANSWER, "the text")
    finally:
        other.stop()


main()
