"""The openai package against a server with --chat-apis: openai_client.py URL. Ends with 1 on a difference."""
import json, sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="tml-local", max_retries=0)
question = [{"role": "user", "content": "What is 7 + 5?"}]


def check(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}")


def refused(kind, code, param, **members):
    try:
        client.completions.create(**members)
    except kind as e:
        check(f"refusal of {members}", (e.code, e.param), (code, param))
    else:
        sys.exit(f"{members} was accepted")


check("models", [m.id for m in client.models.list()], ["nano"])

whole = client.chat.completions.create(model="nano", messages=question, temperature=0)
check("chat", whole.choices[0].message.content, "12")
check("its end", whole.choices[0].finish_reason, "stop")
events = list(client.chat.completions.create(model="nano", messages=question, temperature=0, stream=True,
                                             stream_options={"include_usage": True}))
check("events", "".join(c.delta.content or "" for e in events for c in e.choices), "12")
check("usage of events", events[-1].usage.total_tokens, whole.usage.total_tokens)

two = client.completions.create(model="nano", prompt="What is", temperature=0, n=2)
check("choices", [c.index for c in two.choices], [0, 1])
check("their texts", two.choices[0].text, two.choices[1].text)
text = two.choices[0].text
cut = client.completions.create(model="nano", prompt="What is", temperature=0, stop=text[3:7])
check("stop", cut.choices[0].text, text[:text.index(text[3:7])])
pieces = client.completions.create(model="nano", prompt="What is", temperature=0, stream=True)
check("pieces", "".join(e.choices[0].text for e in pieces), text)

check("one model", client.models.retrieve("nano").id, "nano")
many = client.completions.create(model="nano", prompt=["What is", "Name the", "What is"], temperature=0, n=2)
check("choices of prompts", [c.index for c in many.choices], list(range(6)))
check("prompts by themselves", [many.choices[i].text for i in (0, 1, 4, 5)], [text] * 4)
texts = [""] * 6
for e in client.completions.create(model="nano", prompt=["What is", "Name the", "What is"], temperature=0, n=2,
                                   stream=True):
    texts[e.choices[0].index] += e.choices[0].text
check("pieces of prompts", texts, [c.text for c in many.choices])

scored = client.completions.create(model="nano", prompt="What is", temperature=0, echo=True, logprobs=3)
lp = scored.choices[0].logprobs
check("echo", scored.choices[0].text, "What is" + text)
check("its tokens", "".join(lp.tokens), scored.choices[0].text)
check("their places", lp.text_offset, [len("".join(lp.tokens[:i])) for i in range(len(lp.tokens))])
check("the first has no log-prob", (lp.token_logprobs[0], lp.top_logprobs[0]), (None, None))
alone = client.completions.create(model="nano", prompt="What is", max_tokens=0, echo=True, logprobs=0)
n = len(alone.choices[0].logprobs.tokens)
check("a score alone", alone.choices[0].logprobs.token_logprobs, lp.token_logprobs[:n])
check("greedy", [max(t.values()) for t in lp.top_logprobs[n:]], lp.token_logprobs[n:])

chat = client.chat.completions.create(model="nano", messages=question, temperature=0, n=2, logprobs=True,
                                      top_logprobs=2)
content = chat.choices[1].logprobs.content
check("tokens of a chat", b"".join(bytes(t.bytes) for t in content).decode(), "12")
check("greedy too", [t.top_logprobs[0].token for t in content], [t.token for t in content])
sent = []
for e in client.chat.completions.create(model="nano", messages=question, temperature=0, logprobs=True, top_logprobs=2,
                                        stream=True):
    for c in e.choices:
        sent += c.logprobs.content if c.logprobs else []
check("the same in events", sent, content)

schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99},
                                           "unit": {"type": ["string", "null"], "maxLength": 8}},
          "required": ["sum", "unit"], "additionalProperties": False}
for seed in range(5):
    form = client.chat.completions.create(model="nano", messages=question, seed=seed, max_tokens=60, response_format={
        "type": "json_schema", "json_schema": {"name": "sum", "strict": True, "schema": schema}})
    value = json.loads(form.choices[0].message.content)
    check("members", list(value), ["sum", "unit"])
    check("their types", (type(value["sum"]), 0 <= value["sum"] <= 99, isinstance(value["unit"], (str, type(None)))), (int, True, True))
anything = client.chat.completions.create(model="nano", messages=question, max_tokens=30, response_format={"type": "json_object"})
check("an object", type(json.loads(anything.choices[0].message.content)), dict)
events = client.chat.completions.create(model="nano", messages=question, seed=1, max_tokens=60, stream=True, response_format={
    "type": "json_schema", "json_schema": {"name": "sum", "schema": schema}})
json.loads("".join(c.delta.content or "" for e in events for c in e.choices))
for members, param in [({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"format": "date"}}}}, "response_format"),
                       ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools")]:
    try:
        client.chat.completions.create(model="nano", messages=question, **members)
        sys.exit(f"{members} was accepted")
    except openai.BadRequestError as e:
        check(f"refusal of {members}", e.param, param)

answer = client.responses.create(model="nano", input="What is 7 + 5?", temperature=0)
check("a response", (answer.output_text, answer.status, answer.output[0].role), ("12", "completed", "assistant"))
check("its usage", answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
with client.responses.stream(model="nano", input=question, temperature=0) as stream:
    kinds = [e.type for e in stream]
    check("the last event has it all", stream.get_final_response().output_text, "12")
check("events of a response", (kinds[0], kinds[-1]), ("response.created", "response.completed"))
formed = client.responses.create(model="nano", input=question, max_output_tokens=60, text={"format": {
    "type": "json_schema", "name": "sum", "strict": True, "schema": schema}})
check("members of a response", list(json.loads(formed.output_text)), ["sum", "unit"])
try:
    client.responses.create(model="nano", input="x", previous_response_id="resp_1")
    sys.exit("a response that was never stored was continued")
except openai.BadRequestError as e:
    check("nothing is stored", "previous_response_id" in str(e), True)
try:
    client.embeddings.create(model="nano", input="x")
    sys.exit("embeddings were made")
except openai.BadRequestError as e:
    check("embeddings", "no embeddings" in str(e), True)

refused(openai.NotFoundError, "model_not_found", "model", model="nobody", prompt="x")
refused(openai.BadRequestError, "bad_request", "temperature", model="nano", prompt="x", temperature=-1)
refused(openai.BadRequestError, "context_length_exceeded", None, model="nano", prompt="x", max_tokens=10**7)
print("openai", openai.__version__, "agrees")
