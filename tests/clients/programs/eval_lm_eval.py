"""lm-eval on the tasks of lm_eval_tasks: its models local-completions and local-chat-completions have the scores and
texts of its own model `hf`, which computes with the same checkpoint in float32.
"""

import functools
import shutil
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager
from report import FOLDER, MODEL, check, main, refusals_in_reason, task

FILES = "lm_eval_tasks"
shutil.copytree(Path(__file__).parent / FILES, FILES)  # the tasks' paths are relative to the working folder
MANAGER = TaskManager(include_path=FILES, include_defaults=False)
SCORED, GENERATED = ["choice", "rolling"], ["answer"]

WITHIN = 1e-3  # of the log probability of a whole continuation or text
PATHS = {"local-completions": "/v1/completions", "local-chat-completions": "/v1/chat/completions"}
TOKENIZER = {"tokenizer_backend": "huggingface", "tokenizer": FOLDER}
# Of the model's context of 2,048 tokens, local-completions keeps two free. The windows of `hf` must be as long.
HF = {"pretrained": FOLDER, "dtype": "float32", "device": "cpu", "max_length": 2046}


def responses(model, arguments, names, *, template, batch_size=1):
    """Returns what a model of lm-eval answers to the requests of each task, in the order of the documents: (log
    probability, is_greedy) for a choice, the log probability of a rolling text, or a generated text."""
    found = lm_eval.simple_evaluate(
        model,
        arguments,
        tasks=names,
        task_manager=MANAGER,
        apply_chat_template=template,
        batch_size=batch_size,
        bootstrap_iters=0,
    )
    documents = {name: sorted(found["samples"][name], key=lambda sample: sample["doc_id"]) for name in names}
    return {name: [first for sample in documents[name] for (first,) in sample["resps"]] for name in names}


@functools.cache
def reference(template):
    names = ["choice", "answer"] if template else SCORED + GENERATED
    return responses("hf", HF, names, template=template)


def compare(names, *, model="local-completions", template=False, batch_size=1, **arguments):
    """Checks that the server's answers to all requests of these tasks are those of `hf`."""
    with refusals_in_reason() as url:
        arguments |= {"model": MODEL, "base_url": url + PATHS[model], "max_retries": 1}
        found = responses(model, arguments, names, template=template, batch_size=batch_size)
        for name in names:
            for number, (one, wanted) in enumerate(zip(found[name], reference(template)[name], strict=True)):
                check(same(one, wanted), f"request {number} of {name}: the answer is {one!r}, that of hf {wanted!r}")


def same(one, wanted):
    match wanted:
        case str():
            return one == wanted
        case float():
            return abs(one - wanted) <= WITHIN
        case (score, is_greedy):
            return abs(one[0] - score) <= WITHIN and one[1] is is_greedy


@task
def loglikelihoods_of_tokens():
    compare(SCORED, **TOKENIZER)


@task
def loglikelihoods_of_texts():
    compare(SCORED, tokenized_requests=False, **TOKENIZER)


@task
def loglikelihoods_in_batches():
    compare(SCORED, batch_size=4, **TOKENIZER)


@task
def loglikelihoods_at_once():
    compare(SCORED, num_concurrent=8, **TOKENIZER)


@task
def loglikelihoods_of_chats():
    """After the template, some choices are what the model would answer."""
    greedy = [is_greedy for _, is_greedy in reference(True)["choice"]]
    check(0 < sum(greedy) < len(greedy), f"{sum(greedy)} of {len(greedy)} choices are greedy")
    compare(["choice"], template=True, **TOKENIZER)


@task
def loglikelihoods_remote_tokenizer():
    """By default lm-eval encodes by the server's /tokenize. Here it has no other tokenizer: no hub has this model."""
    compare(SCORED)


@task
def generation_from_tokens():
    compare(GENERATED, **TOKENIZER)


@task
def generation_from_texts():
    compare(GENERATED, tokenized_requests=False, **TOKENIZER)


@task
def generation_in_batches():
    compare(GENERATED, batch_size=4, **TOKENIZER)


@task
def generation_at_once():
    compare(GENERATED, num_concurrent=8, **TOKENIZER)


@task
def generation_from_rendered_chats():
    compare(GENERATED, template=True, **TOKENIZER)


@task
def generation_remote_tokenizer():
    compare(GENERATED)


@task
def generation_by_chat():
    compare(GENERATED, model="local-chat-completions", template=True)


@task
def generation_by_chat_at_once():
    compare(GENERATED, model="local-chat-completions", template=True, num_concurrent=8)


main()
