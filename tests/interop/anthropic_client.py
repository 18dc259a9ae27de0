"""The anthropic package against a server with --chat-apis: anthropic_client.py URL. Ends with 1 on a difference."""
import sys

import anthropic

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "What is 7 + 5?"}]
GREEDY = {"temperature": 0}  # newer releases have no parameter for it
failed = 0


def check(what, ok, seen=""):
    global failed
    print("ok:" if ok else "FAILED:", what, "" if ok else seen)
    failed += not ok


def refusal(client, kind, **changes):
    try:
        client.messages.create(**{"model": "nano", "max_tokens": 8, "messages": QUESTION, **changes})
    except kind as e:
        return e.body["error"]["message"]
    return ""


for base in (URL, URL + "/anthropic/api"):
    client = anthropic.Anthropic(base_url=base, api_key="tml-any", max_retries=0)
    m = client.messages.create(model="nano", max_tokens=16, system="Be brief.", messages=QUESTION, extra_body=GREEDY)
    check("a message", (m.role, m.stop_reason, m.content[0].text) == ("assistant", "end_turn", "12"), m)
    n = client.messages.count_tokens(model="nano", system="Be brief.", messages=QUESTION)
    check("its tokens are counted as they are used", n.input_tokens == m.usage.input_tokens, (n, m.usage))
    with client.messages.stream(model="nano", max_tokens=16, messages=QUESTION, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("a stream adds up", text == final.content[0].text == "12", (text, final))
    m = client.messages.create(model="nano", max_tokens=16, messages=QUESTION, stop_sequences=["2"], extra_body=GREEDY)
    check("a stop sequence is named", (m.stop_reason, m.stop_sequence, m.content[0].text) == ("stop_sequence", "2", "1"), m)
    m = client.messages.create(model="nano", max_tokens=40, messages=QUESTION, extra_body=GREEDY, output_config={
        "format": {"type": "json_schema", "schema": {"type": "object", "properties": {"sum": {"type": "integer"}},
                                                     "required": ["sum"], "additionalProperties": False}}})
    check("an answer under a schema", m.content[0].text.replace(" ", "").replace("\n", "").startswith('{"sum":'), m)
    models = list(client.models.list(limit=1))
    check("models", [(m.type, m.id, m.display_name, m.max_input_tokens, m.created_at.year > 2000) for m in models] ==
          [("model", "nano", "nano", 2048, True)], models)
    check("one model", client.models.retrieve("nano").id == "nano")
    check("an unknown model", "nobody" in refusal(client, anthropic.NotFoundError, model="nobody"))
    check("a picture", "image" in refusal(client, anthropic.BadRequestError, messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}]) or
        "source" in refusal(client, anthropic.BadRequestError, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}]))
    check("tools without a place in the template", "tools" in refusal(client, anthropic.BadRequestError, tools=[
        {"name": "f", "input_schema": {"type": "object"}}]))
sys.exit(failed > 0)
