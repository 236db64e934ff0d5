"""The worker that plays given tokens: the scripts in prompts, and what the engine's scheduler gets of it."""

import json

import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.find_template import find_template, special_tokens
from tests.clients.player import BLOCK_SIZE, SIDE_ANSWER, Player, answer_to, facts
from tests.clients.programs.played import call, script
from tests.clients.server import FOLDER
from tests.fakes import make_core_request
from tests.tokenizer.parts import ids_of, tokenizer

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
CALL = call("read", path='a "b" \\ é 世界')
ASKED = {"role": "user", "content": f"Read it, please. {script(CALL, 'It says {result}, twice {result}.')} Thanks!"}
CALLED = {"role": "assistant", "content": CALL}
FACTS, END = facts()


def rendered(*messages: dict[str, str], tools: bool = True) -> str:
    """Returns the prompt that the demo's template makes of the messages."""
    renderer = ChatRenderer(RendererSettings(find_template(FOLDER, None), special_tokens(FOLDER)))
    chat = text_pb2.ChatInput(messages_json=json.dumps(messages).encode(), add_generation_prompt=True)
    return renderer.render(chat, json.dumps(TOOLS).encode() if tools else b"").text


def result(text: str) -> dict[str, str]:
    return {"role": "tool", "content": text}


def play(prompts: dict[int, str], resumed: dict[int, list[int]] | None = None) -> dict[int, list[int]]:
    """Returns the output tokens of prompts by handle, run together through a scheduler in small steps."""
    kv = KVCacheManager(512, BLOCK_SIZE, (FULL,), True)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(4, 64))
    player = Player(tokenizer(), END)
    outputs = {handle: list((resumed or {}).get(handle, [])) for handle in prompts}
    for handle, prompt in prompts.items():
        done = list(outputs[handle])
        request = make_core_request(handle, ids_of(prompt), 200, FACTS, resumed=done, eos_token_ids=(END,))
        assert scheduler.add(request) is None
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        for tokens in scheduler.update(player.execute(plan)).new_tokens:
            outputs[tokens.handle] += tokens.token_ids
    return outputs


def test_each_turn_has_its_answer() -> None:
    assert answer_to(rendered(ASKED)) == CALL
    assert answer_to(rendered(ASKED, CALLED, result("17"))) == "It says 17, twice 17."
    more = rendered(
        ASKED, CALLED, result("17"), {"role": "assistant", "content": "x"}, {"role": "user", "content": "?"}
    )
    assert answer_to(more) == "The script has no turn 3."


def test_turns_before_the_script_do_not_count() -> None:
    earlier = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."}]
    assert answer_to(rendered(*earlier, ASKED)) == CALL


@pytest.mark.parametrize(("tools", "message"), [(False, ASKED), (True, {"role": "user", "content": "Hello!"})])
def test_other_prompts_have_the_side_answer(tools: bool, message: dict[str, str]) -> None:
    assert answer_to(rendered(message, tools=tools)) == SIDE_ANSWER


def test_the_scheduler_gets_every_token_and_the_end() -> None:
    prompts = {1: rendered(ASKED), 2: rendered(ASKED, CALLED, result("17")), 3: rendered(ASKED, tools=False)}
    outputs = play(prompts)
    assert {handle: ids[-1] for handle, ids in outputs.items()} == dict.fromkeys(prompts, END)
    for handle, answer in enumerate((CALL, "It says 17, twice 17.", SIDE_ANSWER), 1):
        assert outputs[handle][:-1] == ids_of(answer)


def test_a_resumed_answer_goes_on_with_the_same_tokens() -> None:
    prompt = rendered(ASKED)
    whole = play({1: prompt})[1]
    for count in range(len(whole) - 1):
        assert play({1: prompt}, {1: whole[:count]})[1] == whole
