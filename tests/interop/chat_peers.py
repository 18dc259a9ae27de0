"""langchain-openai, instructor or litellm against a server with --chat-apis: chat_peers.py PACKAGE URL. Ends with 1 on a difference."""
import json, sys

package, url = sys.argv[1], sys.argv[2] + "/v1"
question = [{"role": "user", "content": "What is 7 + 5?"}]


def check(what, got, wanted):
    if got != wanted:
        sys.exit(f"{package}: {what}: {got!r}, not {wanted!r}")


def langchain():
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="nano", base_url=url, api_key="tml-local", temperature=0, max_retries=0)
    check("invoke", model.invoke("What is 7 + 5?").content, "12")
    check("stream", "".join(piece.content for piece in model.stream("What is 7 + 5?")), "12")
    schema = {"title": "sum", "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["sum"], "additionalProperties": False}
    check("structured output", list(model.with_structured_output(schema, method="json_schema").invoke("What is 7 + 5?")), ["sum"])


def structured():
    import instructor, openai
    from pydantic import BaseModel

    class Sum(BaseModel):
        sum: int

    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="tml-local", max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
    made = client.chat.completions.create(model="nano", messages=question, response_model=Sum, max_tokens=60, max_retries=0)
    check("a model of pydantic", type(made.sum), int)


def lite():
    import litellm
    answer = litellm.completion(model="openai/nano", api_base=url, api_key="tml-local", messages=question, temperature=0)
    check("completion", answer.choices[0].message.content, "12")
    pieces = litellm.completion(model="openai/nano", api_base=url, api_key="tml-local", messages=question, temperature=0, stream=True)
    check("stream", "".join(p.choices[0].delta.content or "" for p in pieces), "12")


{"langchain-openai": langchain, "instructor": structured, "litellm": lite}[package]()
print(package, "agrees")
