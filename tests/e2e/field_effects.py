"""The effect of every supported field on a server of random weights: EFFECTS has a check for each. Tools and reasoning
are in tool_effects.py.

A check takes (server, path of the API) and fails if the field has no effect.
"""

from collections.abc import Callable
from typing import Any

from tests.e2e.api import CHAT, GREEDY, MODEL, SEEDED, TEXT, Json, ask, choice, error_of, fold, stream, vocabulary
from tests.e2e.harness import Server

END = 2  # the checkpoint's end token, <|im_end|>
TEMPLATE = "{{ messages[0].content }} {{ verbosity }} {{ documents[0].text }} {{ mood }}"


def plain(server: Server, path: str, **more: Any) -> Json:
    return choice(server, path, **{**GREEDY, **more})


def prompt_ids(server: Server, path: str, **more: Any) -> list[int]:
    """Returns the ids of the prompt that the server made."""
    answer = ask(server, path, **more)
    return list(answer["choices"][0]["prompt_token_ids"] if path == TEXT else answer["prompt_token_ids"])


def model(server: Server, path: str) -> None:
    assert ask(server, path, model=MODEL)["model"] == MODEL
    assert error_of(server.post(path, {"model": "other", **BARE[path]}), 404)["code"] == "model_not_found"


def streams(server: Server, path: str) -> None:
    assert fold(stream(server, path, **GREEDY)) == [plain(server, path)]


def stream_options(server: Server, path: str) -> None:
    last = stream(server, path, **GREEDY, stream_options={"include_usage": True})[-1]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 24)
    counts = stream(server, path, **GREEDY, stream_options={"include_usage": True, "continuous_usage_stats": True})
    told = [chunk["usage"]["completion_tokens"] for chunk in counts]
    assert told == sorted(told) and told[-1] == 24


def number_of_choices(server: Server, path: str) -> None:
    assert len(ask(server, path, n=3)["choices"]) == 3


def stop(server: Server, path: str) -> None:
    text = plain(server, path)["text"]
    assert plain(server, path, stop=text[5:8])["text"] == text[: text.index(text[5:8])]


def include_stop_str_in_output(server: Server, path: str) -> None:
    text = plain(server, path)["text"]
    answer = plain(server, path, stop=text[5:8], include_stop_str_in_output=True)
    assert answer["text"] == text[: text.index(text[5:8]) + 3]


def max_tokens(server: Server, path: str) -> None:
    assert len(plain(server, path, max_tokens=5)["token_ids"]) == 5


def max_completion_tokens(server: Server, path: str) -> None:
    assert len(plain(server, path, max_tokens=9, max_completion_tokens=5)["token_ids"]) == 5


def min_tokens(server: Server, path: str) -> None:
    """With a bias, the end token is the next one; min_tokens masks it, ignore_eos or not."""
    eager: Json = {"logit_bias": {str(END): 100}}
    assert plain(server, path, **eager, ignore_eos=False)["token_ids"] == [END]
    answer = plain(server, path, **eager, ignore_eos=False, min_tokens=6)
    assert answer["token_ids"].index(END) == 6
    assert plain(server, path, **eager, min_tokens=6)["token_ids"].index(END) == 6


def greedy(**narrow: Any) -> Callable[[Server, str], None]:
    """Returns a check that these parameters leave only the most likely token."""

    def check(server: Server, path: str) -> None:
        assert choice(server, path, **SEEDED | narrow) == plain(server, path)
        assert choice(server, path, **SEEDED) != plain(server, path)

    return check


def seed(server: Server, path: str) -> None:
    assert choice(server, path, **SEEDED) == choice(server, path, **SEEDED)
    assert choice(server, path, **SEEDED | {"seed": -9}) == choice(server, path, **SEEDED | {"seed": -9})
    assert choice(server, path, **SEEDED) != choice(server, path, **SEEDED | {"seed": 8})
    assert choice(server, path, **SEEDED | {"seed": -1}) != choice(server, path, **SEEDED | {"seed": -1})


def changes(**parameters: Any) -> Callable[[Server, str], None]:
    """Returns a check that these parameters change the greedy answer."""

    def check(server: Server, path: str) -> None:
        assert plain(server, path, **parameters, max_tokens=64) != plain(server, path, max_tokens=64)

    return check


def logit_bias(server: Server, path: str) -> None:
    assert set(plain(server, path, logit_bias={"77": 100})["token_ids"]) == {77}
    first = plain(server, path)["token_ids"][0]
    assert first not in plain(server, path, logit_bias={str(first): -100})["token_ids"]


def allowed_token_ids(server: Server, path: str) -> None:
    found = set(choice(server, path, **SEEDED, allowed_token_ids=[70, 80, 90])["token_ids"])
    assert found <= {70, 80, 90} and len(found) > 1


def bad_words(server: Server, path: str) -> None:
    """A word that is one token, and one of two tokens, which may still follow others."""
    ids = plain(server, path)["token_ids"]
    word = vocabulary().token_bytes(ids[0]).decode()
    assert ids[0] not in plain(server, path, bad_words=[word])["token_ids"]
    pair = word + vocabulary().token_bytes(ids[1]).decode()
    answer = plain(server, path, bad_words=[pair])["token_ids"]
    assert answer[0] == ids[0] and answer[1] != ids[1]


def logprob_token_ids(server: Server, path: str) -> None:
    logprobs: Json = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    found = plain(server, path, **logprobs, logprob_token_ids=[70, 80], return_tokens_as_token_ids=True)["logprobs"]
    if path == CHAT:
        assert [[top["token"] for top in one["top_logprobs"]] for one in found["content"]] == [IDS] * 24
    else:
        assert all(set(IDS) <= set(top) for top in found["top_logprobs"])


IDS = ["token_id:70", "token_id:80"]


def ignore_eos(server: Server, path: str) -> None:
    eager: Json = {"logit_bias": {str(END): 100}}
    assert plain(server, path, **eager, ignore_eos=False)["finish_reason"] == "stop"
    assert plain(server, path, **eager)["token_ids"] == [END] * 24


def stop_token_ids(server: Server, path: str) -> None:
    ids = plain(server, path)["token_ids"]
    answer = plain(server, path, stop_token_ids=[ids[3]])
    assert (answer["token_ids"], answer["stop_reason"]) == (ids[: ids.index(ids[3]) + 1], ids[3])


def skip_special_tokens(server: Server, path: str) -> None:
    only: Json = {"allowed_token_ids": [END], "max_tokens": 2}
    assert plain(server, path, **only)["text"] == ""
    assert plain(server, path, **only, skip_special_tokens=False)["text"] == "<|im_end|>" * 2


def spaces_between_special_tokens(server: Server, path: str) -> None:
    """The checkpoint's decoder puts no spaces; tests/tokenizer/test_detokenize.py has one that does."""
    only: Json = {"allowed_token_ids": [END], "max_tokens": 2, "skip_special_tokens": False}
    assert plain(server, path, **only, spaces_between_special_tokens=False)["text"] == "<|im_end|>" * 2


def truncate_prompt_tokens(server: Server, path: str) -> None:
    whole = prompt_ids(server, path)
    assert prompt_ids(server, path, truncate_prompt_tokens=3) == whole[-3:]
    assert prompt_ids(server, path, truncate_prompt_tokens=-1) == whole


def truncation_side(server: Server, path: str) -> None:
    whole = prompt_ids(server, path)
    assert prompt_ids(server, path, truncate_prompt_tokens=3, truncation_side="right") == whole[:3]


def return_token_ids(server: Server, path: str) -> None:
    assert ask(server, path, return_token_ids=False)["choices"][0]["token_ids"] is None
    assert len(ask(server, path, return_token_ids=True)["choices"][0]["token_ids"]) == 24


def return_tokens_as_token_ids(server: Server, path: str) -> None:
    answer = plain(server, path, logprobs=path == CHAT or 0, return_tokens_as_token_ids=True)
    content = answer["logprobs"]
    tokens = [one["token"] for one in content["content"]] if path == CHAT else content["tokens"]
    assert tokens == [f"token_id:{token_id}" for token_id in answer["token_ids"]]


def return_effective_parameters(server: Server, path: str) -> None:
    found = choice(server, path, **SEEDED, top_k=5, return_effective_parameters=True)["effective_parameters"]
    assert (found["seed"], found["temperature"], found["top_k"], found["max_tokens"]) == (7, 1.0, 5, 24)


def cache_salt(server: Server, path: str) -> None:
    long: Json = {CHAT: {"messages": [{"role": "user", "content": "a b c " * 60}]}, TEXT: {"prompt": "a b c " * 60}}

    def cached(salt: str) -> int:
        answer = server.post(path, {**long[path], "max_tokens": 1, "cache_salt": salt}).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(f"{path} a") == 0
    assert cached(f"{path} a") > 0
    assert cached(f"{path} b") == 0


def priority(server: Server, path: str) -> None:
    """The order is tested in tests/engine_core; a server that schedules by arrival refuses it: test_refusals.py."""
    assert plain(server, path, priority=-5) == plain(server, path)


def request_id(server: Server, path: str) -> None:
    assert ask(server, path, request_id="mine")["id"].endswith("-mine")


def messages(server: Server, path: str) -> None:
    assert prompt_ids(server, path, messages=[{"role": "user", "content": "Other"}]) != prompt_ids(server, path)


def logprobs(server: Server, path: str) -> None:
    assert plain(server, path)["logprobs"] is None
    assert plain(server, path, logprobs=path == CHAT or 2)["logprobs"] is not None


def top_logprobs(server: Server, path: str) -> None:
    found = plain(server, path, logprobs=True, top_logprobs=2)["logprobs"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in found)


def reasoning_effort(server: Server, path: str) -> None:
    """The checkpoint's template opens or closes thinking by enable_thinking."""
    closed = prompt_ids(server, path, chat_template_kwargs={"enable_thinking": False})
    assert closed != prompt_ids(server, path, chat_template_kwargs={"enable_thinking": True})
    assert prompt_ids(server, path, reasoning_effort="none") == closed
    kept = prompt_ids(server, path, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert kept != closed


def template(**parameters: Any) -> Callable[[Server, str], None]:
    """Returns a check that TEMPLATE gets these parameters."""

    def check(server: Server, path: str) -> None:
        documents = [{"text": "paper"}]
        rendered = prompt_ids(server, path, chat_template=TEMPLATE, documents=documents)
        assert prompt_ids(server, path, chat_template=TEMPLATE, **{"documents": documents, **parameters}) != rendered

    return check


def chat_template(server: Server, path: str) -> None:
    question = [{"role": "user", "content": "Hi"}]
    ids = prompt_ids(server, path, messages=question, chat_template="{{ messages[0].content }}!")
    assert ids == prompt_ids(server, TEXT, prompt="Hi!", add_special_tokens=False)


def add_generation_prompt(server: Server, path: str) -> None:
    whole = prompt_ids(server, path)
    shorter = prompt_ids(server, path, add_generation_prompt=False)
    assert len(shorter) < len(whole) and whole[: len(shorter)] == shorter


def continue_final_message(server: Server, path: str) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    open_end: Json = {"messages": talk, "add_generation_prompt": False}
    closed = prompt_ids(server, path, **open_end)
    assert len(prompt_ids(server, path, **open_end, continue_final_message=True)) < len(closed)


def add_special_tokens(server: Server, path: str) -> None:
    """The checkpoint's tokenizer has none to add; tests/tokenizer/test_prompt_encoder.py has one that does."""
    assert prompt_ids(server, path, add_special_tokens=True) == prompt_ids(server, path, add_special_tokens=False)


def prompt(server: Server, path: str) -> None:
    assert prompt_ids(server, path, prompt=[5, 6]) == [5, 6]


def echo(server: Server, path: str) -> None:
    """tests/e2e/test_prompt_logprobs.py has more."""
    if path == TEXT:
        assert plain(server, path, echo=True, prompt="Hi")["text"] == "Hi" + plain(server, path, prompt="Hi")["text"]
        return
    messages = [{"role": "assistant", "content": "I am"}]
    text = plain(server, path, messages=messages)["text"]
    assert plain(server, path, messages=messages, echo=True)["text"] == "I am" + text


def prompt_logprobs(server: Server, path: str) -> None:
    answer = ask(server, path, prompt_logprobs=1)
    found = answer["choices"][0]["prompt_logprobs"] if path == TEXT else answer["prompt_logprobs"]
    assert len(found) == answer["usage"]["prompt_tokens"] and found[0] is None and len(found[1]) in (1, 2)


BARE: dict[str, Json] = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}


def suffix(server: Server, path: str) -> None:
    """This model has no tokens for it; test_suffix.py has one that has."""
    assert plain(server, path, suffix="") == plain(server, path)
    error = error_of(server.post(path, {**BARE[path], "suffix": "after"}), 400)
    assert error["param"] == "suffix" and "suffix is not supported: this model has no tokens" in error["message"]


EFFECTS: dict[str, Callable[[Server, str], None]] = {
    "model": model,
    "stream": streams,
    "stream_options": stream_options,
    "n": number_of_choices,
    "stop": stop,
    "include_stop_str_in_output": include_stop_str_in_output,
    "max_tokens": max_tokens,
    "max_completion_tokens": max_completion_tokens,
    "min_tokens": min_tokens,
    "temperature": greedy(temperature=0),
    "top_p": greedy(top_p=1e-6),
    "top_k": greedy(top_k=1),
    "min_p": greedy(min_p=1.0),
    "seed": seed,
    "presence_penalty": changes(presence_penalty=2),
    "frequency_penalty": changes(frequency_penalty=2),
    "repetition_penalty": changes(repetition_penalty=1e4),
    "logit_bias": logit_bias,
    "allowed_token_ids": allowed_token_ids,
    "bad_words": bad_words,
    "logprob_token_ids": logprob_token_ids,
    "ignore_eos": ignore_eos,
    "stop_token_ids": stop_token_ids,
    "skip_special_tokens": skip_special_tokens,
    "spaces_between_special_tokens": spaces_between_special_tokens,
    "truncate_prompt_tokens": truncate_prompt_tokens,
    "truncation_side": truncation_side,
    "return_token_ids": return_token_ids,
    "return_tokens_as_token_ids": return_tokens_as_token_ids,
    "return_effective_parameters": return_effective_parameters,
    "cache_salt": cache_salt,
    "priority": priority,
    "request_id": request_id,
    "messages": messages,
    "logprobs": logprobs,
    "top_logprobs": top_logprobs,
    "reasoning_effort": reasoning_effort,
    "verbosity": template(verbosity="low"),
    "documents": template(documents=[{"text": "another paper"}]),
    "chat_template": chat_template,
    "chat_template_kwargs": template(chat_template_kwargs={"mood": "sunny"}),
    "add_generation_prompt": add_generation_prompt,
    "continue_final_message": continue_final_message,
    "add_special_tokens": add_special_tokens,
    "prompt": prompt,
    "suffix": suffix,
    "echo": echo,
    "prompt_logprobs": prompt_logprobs,
}
