"""semantic-kernel: OpenAIChatCompletion, which calls the functions of a kernel by itself."""

import openai
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory, FunctionCallContent, FunctionResultContent
from semantic_kernel.functions import kernel_function
from weather import DESCRIPTION, NAME, THINKING, round_trip

# The kernel offers a function by this name. The demo model calls get_weather, which the kernel finds, too.
OFFERED = f"weather-{NAME}"


def parts(url, weather, **fields):
    """Returns (service, arguments of its methods)."""
    client = openai.AsyncOpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)
    service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    kernel = Kernel()
    kernel.add_function(
        plugin_name="weather", function=kernel_function(weather.tool(), name=NAME, description=DESCRIPTION)
    )
    settings = OpenAIChatPromptExecutionSettings(
        temperature=0, function_choice_behavior=FunctionChoiceBehavior.Auto(), **fields
    )
    history = ChatHistory()
    history.add_user_message(weather.question)
    return service, {"chat_history": history, "settings": settings, "kernel": kernel}


def check_history(weather, history):
    """Checks what the service added to the history: the call and its result."""
    items = [item for message in history.messages for item in message.items]
    (call,) = (item for item in items if isinstance(item, FunctionCallContent))
    (result,) = (item for item in items if isinstance(item, FunctionResultContent))
    weather.check_call(call.name, call.arguments)
    equal((result.id, str(result.result)), (call.id, weather.result), "the result")


@task
async def tool_round_trip():
    with round_trip(offered=OFFERED, stream=False) as (url, weather):
        service, arguments = parts(url, weather)
        answer = await service.get_chat_message_content(**arguments)
        weather.check_answer(answer.content)
        equal(answer.finish_reason, "stop", "finish_reason")
        check_history(weather, arguments["chat_history"])


@task
async def tool_round_trip_streamed():
    with round_trip(offered=OFFERED, stream=True) as (url, weather):
        service, arguments = parts(url, weather)
        texts = [chunk.content async for chunk in service.get_streaming_chat_message_content(**arguments) if chunk]
        weather.check_answer("".join(texts))
        check(len(texts) > 2, f"deltas {texts}")
        check_history(weather, arguments["chat_history"])


@task
async def tool_round_trip_with_reasoning():
    with round_trip(offered=OFFERED, stream=False, thinking=True) as (url, weather):
        service, arguments = parts(url, weather, extra_body=THINKING)
        weather.check_answer((await service.get_chat_message_content(**arguments)).content.strip())


main()
