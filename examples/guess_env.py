#!/usr/bin/env python3
"""guess_env.py - an environment: guess a number from 1 to 100.

Speaks the line protocol of docs/protocol.md. Needs only Python:

    tinkc env check 'python3 examples/guess_env.py'
    tinkc train rl rows.jsonl --env-cmd 'python3 examples/guess_env.py'
"""
import json
import random
import re
import sys

MOST_GUESSES = 7
episodes = {}


def say(text):
    return {"messages": [{"role": "user", "content": text}]}


def reset(request):
    number = random.Random(request["seed"]).randint(1, 100)
    episodes[request["episode"]] = {"number": number, "guesses": 0}
    return say("I think of a number from 1 to 100. Answer with a guess, a number alone.")


def step(request):
    episode = episodes.get(request["episode"])
    if episode is None:
        return {"error": "no such episode"}
    found = re.search(r"\d+", request["message"]["content"])
    guess = int(found.group()) if found and 1 <= int(found.group()) <= 100 else None
    episode["guesses"] += 1
    hit = guess == episode["number"]
    if hit or episode["guesses"] == MOST_GUESSES:
        del episodes[request["episode"]]
        reward = 1 - 0.1 * (episode["guesses"] - 1) if hit else 0
        return {"reward": reward, "done": True, "metrics": {"guesses": episode["guesses"]}}
    if guess is None:
        return say("A number from 1 to 100, please.")
    return say(f"{guess} is too {'low' if guess < episode['number'] else 'high'}.")


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "close":
        episodes.pop(request["episode"], None)
        continue  # is not answered
    answer = {"reset": reset, "step": step}.get(request["type"], lambda _: {"error": "unknown type"})(request)
    print(json.dumps({"id": request["id"], **answer}), flush=True)
