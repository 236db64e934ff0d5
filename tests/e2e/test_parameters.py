"""Every parameter of a request has its effect on the answer of a real server."""

from collections import Counter

import pytest

from tests.e2e.api import (
    CHAT,
    GREEDY,
    SEEDED,
    TEXT,
    Json,
    ask,
    both,
    choice,
    choices_of,
    error_of,
    fold,
    ids_by_bytes,
    stream,
    vocabulary,
)
from tests.e2e.harness import Server


@both
def test_choices_depend_on_seed_and_index_alone(server: Server, path: str) -> None:
    three = choices_of(ask(server, path, **SEEDED, n=3))
    assert len({one["text"] for one in three}) == 3
    assert choices_of(ask(server, path, **SEEDED, n=3)) == three
    assert choices_of(ask(server, path, **SEEDED, n=2)) == three[:2]
    assert choices_of(ask(server, path, **SEEDED | {"seed": 8}, n=3)) != three


@both
def test_without_a_seed_answers_differ(server: Server, path: str) -> None:
    assert choice(server, path, temperature=1)["text"] != choice(server, path, temperature=1)["text"]


@both
@pytest.mark.parametrize("narrow", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_what_leaves_one_token_is_greedy(server: Server, path: str, narrow: Json) -> None:
    assert choice(server, path, **SEEDED | narrow) == choice(server, path, **GREEDY)


@pytest.mark.parametrize("neutral", [{"top_k": -1}, {"top_k": 0}, {"top_p": 1}, {"min_p": 0}], ids=str)
def test_neutral_values_change_nothing(server: Server, neutral: Json) -> None:
    assert choice(server, TEXT, **SEEDED, **neutral) == choice(server, TEXT, **SEEDED)


def test_top_k_keeps_the_most_likely(server: Server) -> None:
    answer = choice(server, CHAT, **SEEDED, top_k=3, logprobs=True, top_logprobs=3)
    ranks = [[top["bytes"] for top in one["top_logprobs"]].index(one["bytes"]) for one in answer["logprobs"]["content"]]
    assert set(ranks) == {0, 1, 2}


@pytest.mark.parametrize(
    ("presence", "frequency"), [(0, 0), (2, 0), (0, 2), (0.5, 0.5), (-1, 0)], ids=["none", "p", "f", "both", "negative"]
)
def test_penalties_shift_the_logprobs(server: Server, presence: float, frequency: float) -> None:
    """Each greedy token is the best of the 20 most likely after the penalties for its count in the answer."""
    answer = choice(
        server, CHAT, **GREEDY, presence_penalty=presence, frequency_penalty=frequency, logprobs=True, top_logprobs=20,
        max_tokens=64,
    )  # fmt: skip
    seen: Counter[int] = Counter()
    for token_id, entry in zip(answer["token_ids"], answer["logprobs"]["content"], strict=True):
        scores = {ids_by_bytes()[bytes(top["bytes"])]: top["logprob"] for top in (*entry["top_logprobs"], entry)}
        for other in scores:
            scores[other] -= frequency * seen[other] + presence * (seen[other] > 0)
        assert scores[token_id] == max(scores.values())
        seen[token_id] += 1
    plain = choice(server, CHAT, **GREEDY, max_tokens=64)
    assert (answer["token_ids"] == plain["token_ids"]) == (presence == frequency == 0)


def test_a_repetition_penalty_counts_the_prompt_too(server: Server) -> None:
    prompt = choice(server, TEXT, **GREEDY)["token_ids"]
    plain = choice(server, TEXT, prompt=prompt, **GREEDY, max_tokens=64)["token_ids"]
    ids = choice(server, TEXT, prompt=prompt, **GREEDY, max_tokens=64, repetition_penalty=1e4)["token_ids"]
    assert len(set(prompt + plain)) < len(set(prompt)) + len(plain)
    assert len(set(prompt + ids)) == len(set(prompt)) + len(ids)


@both
def test_a_stop_string_across_tokens(server: Server, path: str) -> None:
    """The stop string starts within one token and ends within the second token after it."""
    plain = choice(server, path, **GREEDY)
    texts = [vocabulary().token_bytes(token_id).decode(errors="replace") for token_id in plain["token_ids"]]
    at, stop = next(
        (i, stop)
        for i in range(1, 20)
        if all(len(text) > 1 and text.isprintable() and "�" not in text for text in texts[i : i + 3])
        and plain["text"].count(stop := texts[i][1:] + texts[i + 1] + texts[i + 2][:1]) == 1
    )
    before = plain["text"][: plain["text"].index(stop)]
    for body in ({"stop": stop}, {"stop": ["no such text", stop]}):
        answer = choice(server, path, **GREEDY, **body)
        assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (before, "stop", stop)
        assert answer["token_ids"] == plain["token_ids"][: at + 3]
        assert fold(stream(server, path, **GREEDY, **body)) == [answer]
        included = choice(server, path, **GREEDY, **body, include_stop_str_in_output=True)
        assert included == answer | {"text": before + stop}
    late = choice(server, path, **GREEDY, stop=stop, min_tokens=at + 3)
    assert late == plain


@both
def test_a_stop_token(server: Server, path: str) -> None:
    plain = choice(server, path, **GREEDY)
    ids = plain["token_ids"]
    at = next(i for i in range(4, 20) if ids[i] not in ids[:i] and vocabulary().token_bytes(ids[i]).isalpha())
    answer = choice(server, path, **GREEDY, stop_token_ids=[ids[at]])
    assert (answer["finish_reason"], answer["stop_reason"], answer["token_ids"]) == ("stop", ids[at], ids[: at + 1])
    text = vocabulary().token_bytes(ids[at]).decode()
    included = choice(server, path, **GREEDY, stop_token_ids=[ids[at]], include_stop_str_in_output=True)
    assert included["text"] == answer["text"] + text
    later = choice(server, path, **GREEDY, stop_token_ids=[ids[at]], min_tokens=at + 1)
    assert len(later["token_ids"]) > at + 1
    assert later["token_ids"][at] != ids[at]


@both
def test_end_of_text(demo_server: Server, path: str) -> None:
    prompt = {
        CHAT: {},
        TEXT: {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
    }[path]
    plain = choice(demo_server, path, **prompt, temperature=0, max_tokens=100, ignore_eos=False)
    length = len(plain["token_ids"])
    assert length < 100
    assert (plain["finish_reason"], plain["stop_reason"], plain["token_ids"][-1]) == ("stop", None, 2)
    assert "<|im_end|>" not in plain["text"]
    later = choice(demo_server, path, **prompt, temperature=0, max_tokens=100, ignore_eos=False, min_tokens=length + 5)
    assert len(later["token_ids"]) >= length + 5
    assert 2 not in later["token_ids"][: length + 5]
    endless = choice(demo_server, path, **prompt, temperature=0, max_tokens=100)
    assert (endless["finish_reason"], len(endless["token_ids"])) == ("length", 100)
    assert endless["token_ids"][:length] == plain["token_ids"]
    shown = choice(demo_server, path, **prompt, **GREEDY, max_tokens=length, skip_special_tokens=False)
    assert shown["text"] == plain["text"] + "<|im_end|>"


def test_limits_of_the_answer(server: Server) -> None:
    assert len(choice(server, CHAT, max_tokens=5)["token_ids"]) == 5
    assert len(choice(server, CHAT, max_tokens=None, max_completion_tokens=7)["token_ids"]) == 7
    assert len(choice(server, CHAT, max_tokens=5, max_completion_tokens=7)["token_ids"]) == 7
    assert len(choice(server, TEXT, max_tokens=None)["token_ids"]) == 16  # OpenAI's default
    assert choice(server, TEXT)["finish_reason"] == "length"


def test_without_a_limit_the_model_length_is_it(demo_server: Server) -> None:
    long = [{"role": "user", "content": "a " * 2000}]
    answer = ask(demo_server, CHAT, messages=long, max_tokens=None)
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"
    prompt = [5] * 2028
    assert len(choice(demo_server, TEXT, prompt=prompt, max_tokens=20)["token_ids"]) == 20
    body = {"prompt": prompt, "max_tokens": 21}
    assert "at most 20 are left" in error_of(demo_server.post(TEXT, body), 400)["message"]


def test_chat_logprobs(server: Server) -> None:
    assert choice(server, CHAT)["logprobs"] is None
    alone = choice(server, CHAT, **SEEDED, logprobs=True)["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in alone)
    answer = choice(server, CHAT, **SEEDED, logprobs=True, top_logprobs=5)
    entries = answer["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace") == answer["text"]
    for token_id, entry, same in zip(answer["token_ids"], entries, alone, strict=True):
        top = entry["top_logprobs"]
        assert bytes(entry["bytes"]) == vocabulary().token_bytes(token_id)
        assert entry["token"] == bytes(entry["bytes"]).decode(errors="replace")
        assert entry["logprob"] == same["logprob"] <= top[0]["logprob"] <= 0
        assert [one["logprob"] for one in top] == sorted((one["logprob"] for one in top), reverse=True)
        assert len(top) == len({tuple(one["bytes"]) for one in top}) == 5
        assert all(one["logprob"] == entry["logprob"] for one in top if one["bytes"] == entry["bytes"])
        assert [one.keys() for one in (entry, *top)] == [entry.keys(), *[entry.keys() - {"top_logprobs"}] * 5]


def test_completion_logprobs(server: Server) -> None:
    assert choice(server, TEXT)["logprobs"] is None
    answer = choice(server, TEXT, **SEEDED, logprobs=4)
    logprobs = answer["logprobs"]
    assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert "".join(logprobs["tokens"]) == answer["text"]
    for index, (token, offset) in enumerate(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)):
        assert answer["text"].startswith(token, offset) or "�" in token
        assert logprobs["top_logprobs"][index][token] == logprobs["token_logprobs"][index]
        assert 4 <= len(logprobs["top_logprobs"][index]) <= 5 or "�" in logprobs["top_logprobs"][index]
    special = choice(server, TEXT, temperature=2, seed=0, max_tokens=300, ignore_eos=True, logprobs=0)
    told, offsets = special["logprobs"]["tokens"], special["logprobs"]["text_offset"]
    assert {"<|im_end|>", "�"} & set(told), "tokens that add nothing, or only a part of a character"
    assert offsets == sorted(offsets) and offsets[-1] <= len(special["text"])
    for token, begin, end in zip(told, offsets, [*offsets[1:], len(special["text"])], strict=True):
        text = special["text"][begin:end]
        assert text in ("", token) or "�" in token + text
    alone = choice(server, TEXT, **SEEDED, logprobs=0)["logprobs"]
    assert alone["token_logprobs"] == logprobs["token_logprobs"]
    assert alone["top_logprobs"] == [
        {token: value} for token, value in zip(alone["tokens"], alone["token_logprobs"], strict=True)
    ]
