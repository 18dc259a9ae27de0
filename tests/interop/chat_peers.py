"""Packages that others wrote against a server with --chat-apis: chat_peers.py PACKAGE URL. Ends with 1 on a difference.

The server has the models nano, and `tools`, whose template takes tools. What `tools` says means nothing, so loops of calls are only
to end without a refusal.
"""
import json, os, sys

package, url = sys.argv[1], sys.argv[2] + "/v1"
question = [{"role": "user", "content": "What is 7 + 5?"}]


def check(what, got, wanted):
    if got != wanted:
        sys.exit(f"{package}: {what}: {got!r}, not {wanted!r}")


schema = {"title": "sum", "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["sum"], "additionalProperties": False}
add = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


def call_loop(model):
    """A call that is required, its result, and what the model says then."""
    from langchain_core.messages import HumanMessage, ToolMessage
    talk = [HumanMessage("What is 7 + 5?")]
    answer = model.bind_tools([add], tool_choice="add").invoke(talk)
    check("a call", (answer.tool_calls[0]["name"], sorted(answer.tool_calls[0]["args"])), ("add", ["a", "b"]))
    talk += [answer, ToolMessage("12", tool_call_id=answer.tool_calls[0]["id"])]
    check("the answer to its result", bool(model.bind_tools([add]).invoke(talk).response_metadata), True)


def langchain():
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="nano", base_url=url, api_key="tml-local", temperature=0, max_retries=0)
    check("invoke", model.invoke("What is 7 + 5?").content, "12")
    check("stream", "".join(piece.content for piece in model.stream("What is 7 + 5?")), "12")
    check("structured output", list(model.with_structured_output(schema, method="json_schema").invoke("What is 7 + 5?")), ["sum"])


    for responses in (False, True):
        call_loop(ChatOpenAI(model="tools", base_url=url, api_key="tml-local", max_retries=0, max_tokens=90, use_responses_api=responses))


def langchain_of_anthropic():
    from langchain_anthropic import ChatAnthropic
    home = url.removesuffix("/v1") + "/anthropic/api"
    check("invoke", ChatAnthropic(model="nano", base_url=home, api_key="tml-local", temperature=0, max_retries=0, max_tokens=20).invoke("What is 7 + 5?").content, "12")
    call_loop(ChatAnthropic(model="tools", base_url=home, api_key="tml-local", max_retries=0, max_tokens=90))


def structured():
    import instructor, openai
    from pydantic import BaseModel

    class Sum(BaseModel):
        sum: int

    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="tml-local", max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
    made = client.chat.completions.create(model="nano", messages=question, response_model=Sum, max_tokens=60, max_retries=0)
    check("a model of pydantic", type(made.sum), int)
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="tml-local", max_retries=0), mode=instructor.Mode.RESPONSES_TOOLS)
    made = client.responses.create(model="tools", input="What is 7 + 5?", response_model=Sum, max_output_tokens=90, max_retries=0)
    check("a model as a call", type(made.sum), int)


def lite():
    import litellm
    answer = litellm.completion(model="openai/nano", api_base=url, api_key="tml-local", messages=question, temperature=0)
    check("completion", answer.choices[0].message.content, "12")
    pieces = litellm.completion(model="openai/nano", api_base=url, api_key="tml-local", messages=question, temperature=0, stream=True)
    check("stream", "".join(p.choices[0].delta.content or "" for p in pieces), "12")


def agents():
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Sum(BaseModel):
        sum: int

    plus = function_tool(lambda a: a, name_override="plus", description_override="adds")
    client = AsyncOpenAI(base_url=url, api_key="tml-local", max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        made = Runner.run_sync(Agent("x", model=kind("nano", client), output_type=Sum, model_settings=ModelSettings(max_tokens=90)), "What is 7 + 5?")
        check("a typed answer", type(made.final_output.sum), int)
        how = ModelSettings(max_tokens=90, temperature=0, tool_choice="required")
        Runner.run_sync(Agent("x", model=kind("tools", client), tools=[plus], output_type=Sum, model_settings=how), "What is 7 + 5?", max_turns=4)


def pydantic():
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Sum(BaseModel):
        sum: int

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = lambda name: kind(name, provider=OpenAIProvider(base_url=url, api_key="tml-local"))
        for form, name in ((NativeOutput, "nano"), (ToolOutput, "tools")):
            made = Agent(model(name), output_type=form(Sum)).run_sync("What is 7 + 5?", model_settings={"max_tokens": 90})
            check(form.__name__, type(made.output.sum), int)


{"langchain-openai": langchain, "langchain-anthropic": langchain_of_anthropic, "instructor": structured, "litellm": lite,
 "openai-agents": agents, "pydantic-ai-slim": pydantic}[package]()
print(package, "agrees")
