"""crewai: a crew of one agent. Its prompts are too much for the demo model, so it asks a server with a worker that
plays given tokens.
"""

from crewai import LLM, Agent, Crew, Task
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from report import API_KEY, MODEL, SECONDS, check, main, task
from weather import NAME, round_trip


def crew(url, weather, stream=False):
    llm = LLM(model=f"openai/{MODEL}", base_url=url, api_key=API_KEY, temperature=0, timeout=SECONDS, stream=stream)
    agent = Agent(
        role="assistant",
        goal="Answer",
        backstory="Brief",
        llm=llm,
        tools=[tool(NAME)(weather.tool())],
        max_retry_limit=0,
    )
    asked = Task(description=weather.question, expected_output="A sentence", agent=agent)
    return Crew(agents=[agent], tasks=[asked], verbose=False, tracing=False)


@task
def tool_round_trip():
    with round_trip(stream=False, played=True) as (url, weather):
        weather.check_answer(crew(url, weather).kickoff().raw)


@task
def tool_round_trip_streamed():
    """crewai shows deltas as events of its bus only."""
    with round_trip(stream=True, played=True) as (url, weather), crewai_event_bus.scoped_handlers():
        events = []
        crewai_event_bus.on(LLMStreamChunkEvent)(lambda source, event: events.append(event))
        weather.check_answer(crew(url, weather, stream=True).kickoff().raw)
        crewai_event_bus.flush()
        texts = [event.chunk for event in sorted(events, key=lambda one: one.emission_sequence) if not event.tool_call]
        weather.check_answer("".join(texts))
        check(len(texts) > 2, f"deltas {texts}")


main()
