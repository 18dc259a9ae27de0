#!/usr/bin/env python3
"""calculator_env.py - an environment with a tool: the model may calculate before it answers.

A row gives the task: {"question": "What is 17 * 23?", "answer": 391}; without one the seed makes a
product. The model calls the tool as its chat format does (<tool_call>{"name": "calculate",
"arguments": {"expression": "17 * 23"}}</tool_call>) or, for models without one, writes a line
"calculate: 17 * 23". Anything else is its answer. Line protocol as in guess_env.py:

    tinkc env check 'python3 examples/calculator_env.py'
"""
import json
import operator
import re
import sys

MOST_CALLS = 4
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "adds, subtracts, multiplies or divides two numbers",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
episodes = {}


def calculate(expression):
    found = re.fullmatch(NUMBER + r"([-+*/])" + NUMBER, expression)
    try:
        return "%.10g" % OPERATIONS[found[2]](float(found[1]), float(found[3]))
    except (TypeError, ArithmeticError):
        return "error: not two numbers with + - * / between them"


def reset(request):
    row, seed = request["row"], request["seed"]
    a, b = seed % 90 + 10, seed // 90 % 90 + 10
    question = row.get("question")
    answer = row.get("answer", 0) if question else a * b
    episodes[request["episode"]] = {"answer": float(answer), "calls": 0}
    task = question or f"What is {a} * {b}?"
    return {"messages": [{"role": "user", "content": task}], "tools": [TOOL]}


def wanted(message):
    """What the model wants calculated; None if it does not."""
    if message.get("tool_calls"):
        arguments = message["tool_calls"][0]["function"]["arguments"]
        return str(arguments.get("expression", "")) if isinstance(arguments, dict) else ""
    text = message["content"]
    return text.removeprefix("calculate:") if text.startswith("calculate:") else None


def step(request):
    episode = episodes.get(request["episode"])
    if episode is None:
        return {"error": "no such episode"}
    expression = wanted(request["message"])
    episode["calls"] += expression is not None
    if expression is not None and episode["calls"] <= MOST_CALLS:
        return {"messages": [{"role": "tool", "content": calculate(expression)}]}
    del episodes[request["episode"]]
    given = re.search(NUMBER, request["message"]["content"])
    right = given is not None and abs(float(given[1]) - episode["answer"]) < 1e-6
    return {"reward": float(right), "done": True, "metrics": {"tool_calls": episode["calls"]}}


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "close":
        episodes.pop(request["episode"], None)
        continue  # is not answered
    answer = {"reset": reset, "step": step}.get(request["type"], lambda _: {"error": "unknown type"})(request)
    print(json.dumps({"id": request["id"], **answer}), flush=True)
