"""smolagents' OpenAIModel: calls that must come, which is its default with tools, and response_format."""

from forms import MESSAGES, RESPONSE_FORMAT, asking_for, asking_for_calls, check_text
from report import API_KEY, MODEL, SECONDS, check, main, task
from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.agents import EMPTY_PROMPT_TEMPLATES
from smolagents.models import ChatMessageToolCall, agglomerate_stream_deltas
from weather import DESCRIPTION, NAME, Weather


def model(url):
    client = {"max_retries": 0, "timeout": SECONDS}
    return OpenAIModel(MODEL, api_base=url, api_key=API_KEY, client_kwargs=client, temperature=0, max_tokens=600)


class GetWeather(Tool):
    name = NAME
    description = DESCRIPTION
    inputs = {"city": {"type": "string", "description": "The city"}}  # noqa: RUF012 - smolagents reads the class
    output_type = "string"

    def __init__(self, weather):
        super().__init__()
        self._get = weather.tool()

    def forward(self, city: str) -> str:
        return self._get(city)


def check_call(weather, call):
    check(isinstance(call, ChatMessageToolCall), f"the call is {call}")
    weather.check_call(call.function.name, call.function.arguments)


@task
def required_call():
    weather = Weather()
    with asking_for_calls("required") as url:
        answer = model(url).generate(weather.messages(), tools_to_call_from=[GetWeather(weather)])
    check_call(weather, answer.tool_calls[0])


@task
def required_call_streamed():
    weather = Weather()
    with asking_for_calls("required") as url:
        deltas = list(model(url).generate_stream(weather.messages(), tools_to_call_from=[GetWeather(weather)]))
    check_call(weather, agglomerate_stream_deltas(deltas).tool_calls[0])


@task
def json_by_schema():
    with asking_for("response_format") as url:
        check_text(model(url).generate(MESSAGES, response_format=RESPONSE_FORMAT).content)


@task
def step_of_an_agent():
    """One step: the agent's own prompt, which tells how to end, is longer than the demo model's context."""
    weather = Weather()
    prompts = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Use the tools."}
    with asking_for("tool_choice") as url:
        agent = ToolCallingAgent([GetWeather(weather)], model(url), prompt_templates=prompts, verbosity_level=0)
        step = next(iter(agent.run(weather.question, stream=True, max_steps=1)))
    check(step.name in (NAME, "final_answer"), f"the first event is {step}")


main()
