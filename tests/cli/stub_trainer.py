"""Training and sampling at the service of stub.py: answers that follow from the request alone.

A token's log-probability is -(id % 7 + 1) / 8. An answer is one digit and the end of the turn of models/nano; prompt,
seed and number of the sample choose the digit. Texts in a request make it fail:

    a path that ends in "lost"      404, as a checkpoint that was deleted
    a path that ends in "stuck"     what is saved after it was loaded cannot be deleted
    a path that ends in "spoilt"    the promise fails; "barred": 403
    a prompt or an example with "@" the promise fails
    a prompt with "}"               likewise, by the caller's own fault
    a prompt with "#"               the answer is cut; with "~", it is "<think>x</think>", the end of the line and the digit
    an example with "`"             its log-probabilities are not numbers; with "^", they are beyond a float
    a prompt with "&"               the connection ends without an answer
    a prompt with "%"               there is no answer while the command waits
    a prompt with ";"               a sampler's log-probabilities of it are twice those of a trainer
    a prompt with "$["              the answer comes when there is a second one
    a prompt with "|"               the service gives no most likely tokens of it
    a prompt with "_"               the answer has no log-probabilities
    a prompt with "$<"              a sampler's log-probabilities of it lack the last one; with "$>", there is one more; with "$=", the second is none
    a checkpoint to keep for 77 s   it cannot be saved

GET /said gives what was asked since the last time: calls without a number in order, those of a trainer by number, samples by text.
"""
import json, math, threading

END, DIGIT_0, FAILS, CUT, TALK, NAN, HUGE, UNRANKED, SILENT, TWICE, NEVER, WRONG, BARE = 4095, 15, 31, 2, 93, 63, 61, 91, 5, 26, 4, 92, 62
PAIRED, FEWER, MORE, HOLE = {3, 58}, {3, 27}, {3, 29}, {3, 28}
THINK, THOUGHT = [27, 83, 71, 72, 77, 74, 29], [27, 14, 83, 71, 72, 77, 74, 29]  # <think> and </think>
QUIET = ("/api/v1/client/", "/api/v1/retrieve_future", "/api/v1/session_heartbeat", "/api/v1/telemetry", "/said")
FAILED = {"error": "the request failed at the service", "category": "server"}


def logprob(token):
    return -(token % 7 + 1) / 8


def tensor(values):
    return {"data": values, "dtype": "float32", "shape": [len(values)]}


def promise(h, value):
    with h.server.lock:  # requests come at the same time, and no two may share a number
        number = f"promise-{len(h.server.promised)}"
        h.server.promised[number] = value
    h.answer(200, {"request_id": number})


def first_targets(t):
    """One for each place, also where there are several."""
    return t["data"][::len(t["data"]) // t["shape"][0]] if t["data"] else []


def forward(h, path, query, body):
    """Log-probabilities of the targets. Protobuf is refused, so that requests can be read."""
    if not body.startswith(b"{"):
        return h.answer(415, {"detail": "JSON, please"})
    asked = json.loads(body)["forward_backward_input" if "backward" in path else "forward_input"]
    if asked["loss_fn"] == "dro":
        return h.answer(422, {"detail": "no such loss"})
    inputs = [tokens_of({"prompt": d["model_input"]}) for d in asked["data"]]
    if any(FAILS in row for row in inputs):
        return promise(h, FAILED)
    targets = [first_targets(d["loss_fn_inputs"]["target_tokens"]) for d in asked["data"]]
    def values(given, row):
        return [math.nan if NAN in given else -1e39 if HUGE in given else logprob(t) for t in row]
    promise(h, {"loss_fn_output_type": "TensorData", "metrics": {"loss:sum": sum(map(len, targets)) / 2},
                "loss_fn_outputs": [{"logprobs": tensor(values(given, row))} for given, row in zip(inputs, targets)]})


def optim_step(h, path, query, body):
    """The first one with a learning rate of 0.75 finds the service busy."""
    rate = json.loads(body)["adam_params"]["learning_rate"]
    if rate == 0.75 and "busy" not in h.server.promised:
        h.server.promised["busy"] = {}
        return h.answer(503, {"detail": "busy"}, [("Retry-After", "0.5")])
    promise(h, {"metrics": {"optim/grad_norm": json.loads(body)["seq_id"] / 4}})


def save(kind):
    def fn(h, path, query, body):
        asked = json.loads(body)
        if asked.get("ttl_seconds") == 77:
            return promise(h, FAILED)
        if asked.get("path"):
            return promise(h, {"path": f"tinker://{asked['model_id']}/{kind}/{asked['path']}"})
        promise(h, {"sampling_session_id": f"sampler-{asked['sampling_session_seq_id']}"})
    return fn


def load(h, path, query, body):
    wanted = json.loads(body)["path"]
    h.server.stuck = wanted.endswith("stuck")
    if wanted.endswith("lost"):
        return h.answer(404, {"detail": "no such checkpoint"}, [("x-should-retry", "false")])
    if wanted.endswith("barred"):
        return h.answer(403, {"detail": "not yours"}, [("x-should-retry", "false")])
    h.server.loaded = wanted
    promise(h, FAILED if wanted.endswith("spoilt") else {"type": "load_weights", "path": wanted})


def tokens_of(asked):
    return [t for chunk in asked["prompt"]["chunks"] for t in chunk["tokens"]]


def sample(h, path, query, body):
    asked = json.loads(body)
    prompt, how = tokens_of(asked), asked["sampling_params"]
    if SILENT in prompt:
        h.close_connection = True
        return
    if PAIRED <= set(prompt):
        with h.server.lock:
            h.server.pair = getattr(h.server, "pair", None) or threading.Barrier(2)
        try:
            h.server.pair.wait(60)
        except threading.BrokenBarrierError:
            return promise(h, FAILED)
    for token, answer in ((FAILS, FAILED), (WRONG, dict(FAILED, category="user")), (NEVER, None)):
        if token in prompt:
            return promise(h, answer)
    def sequence(i):
        digit = DIGIT_0 + (sum(prompt) + how.get("seed", 0) + i) % 10
        tokens = [*THINK, 87, *THOUGHT, 198, digit, END] if TALK in prompt else [digit, END]
        tokens = tokens[:1 if CUT in prompt else how.get("max_tokens") or len(tokens)]
        return {"stop_reason": "stop" if tokens[-1] == END else "length", "tokens": tokens, "logprobs": None if BARE in prompt else [logprob(t) for t in tokens]}
    def scores():
        found = set(prompt)
        out = [None] + [-1e39 if HUGE in found else logprob(t) * (1 + (TWICE in found)) for t in prompt[1:]]
        if HOLE <= found:
            out[1] = None
        return out[:-1] if FEWER <= found else out + [-9] if MORE <= found else out
    most = 0 if UNRANKED in prompt else asked.get("topk_prompt_logprobs", 0)
    promise(h, {"sequences": [sequence(i) for i in range(asked.get("num_samples", 1))],
                "prompt_logprobs": scores() if asked.get("prompt_logprobs") else None,
                "topk_prompt_logprobs": [None] + [[[t + k, logprob(t) - k] for k in range(most)] for t in prompt[1:]] if most else None})


def short(value):
    """Numbers to six digits: the rest depends on the processor."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return [short(v) for v in value] if isinstance(value, list) else value


def runs(values):
    """Numbers on few characters: repeated ones as VALUE*TIMES, fractions to six digits."""
    out = []
    for v in (f"{v:.6g}" if isinstance(v, float) else str(v) for v in values):
        if out and out[-1][0] == v:
            out[-1][1] += 1
        else:
            out.append([v, 1])
    return " ".join(v if n == 1 else f"{v}*{n}" for v, n in out)


def datum(d):
    """One example of a forward pass on one line; targets that are the tokens one place on are not repeated."""
    tokens, parts = tokens_of({"prompt": d["model_input"]}), []
    for name, t in d["loss_fn_inputs"].items():
        values = t["data"]
        if name == "target_tokens" and values[:-1] == tokens[1:]:
            parts.append(f"then {values[-1]}")
        else:
            shape = "" if t.get("shape") == [len(values)] else f" {t.get('shape')}"
            parts.append(f"{name} {t['dtype']}{shape} {runs(values)}")
    return f"  {runs(tokens)} | " + " | ".join(parts)


def readable(value):
    """A request as text: examples of a pass line by line, tokens of a prompt in a row."""
    value, lines = {k: v for k, v in value.items() if k != "sdk_version"}, []
    for key in ("forward_backward_input", "forward_input"):
        if key in value:
            value[key] = dict(value[key])
            lines = [datum(d) for d in value[key].pop("data")]
    if "prompt" in value:
        value["prompt"] = runs(tokens_of(value))
    return "\n".join([json.dumps(short(value)), *lines])


def said(h, path, query, body):
    seen, h.server.seen = h.server.seen, []
    calls = [c for c in seen if not c[1].startswith(QUIET)]
    rows = []
    for order, (method, where, what) in enumerate(calls):
        if what and not what.startswith(b"{"):
            continue
        value = json.loads(what) if what else {}
        if where.endswith("/asample"):
            value.pop("seq_id", None)
            rows.append((2, 0, json.dumps(value), where, value))
        else:
            number = value.get("seq_id")
            rows.append((0, order, "", f"{method} {where}", value) if number is None else (1, number, where, where, value))
    rows.sort(key=lambda r: r[:3])
    text = "".join(f"{r[3].replace('/api/v1/', '')} {readable(r[4])}\n" for r in rows)
    h.answer(200, None, body=text.encode())


def create_session(h, path, query, body):
    h.answer(200, {"sampling_session_id": f"sampler-{json.loads(body)['sampling_session_seq_id']}"})


ROUTES = [
    ("/api/v1/forward_backward", forward), ("/api/v1/forward", forward), ("/api/v1/optim_step", optim_step),
    ("/api/v1/save_weights", save("weights")), ("/api/v1/save_weights_for_sampler", save("sampler_weights")),
    ("/api/v1/create_sampling_session", create_session), ("/api/v1/asample", sample), ("/api/v1/load_weights", load), ("/said", said),
]
