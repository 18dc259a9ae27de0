"""Our recipes against the Python SDK: the same data and seeds, 20 steps, the cookbook's formulas in numpy.

Usage: recipes_agree.py TINKC URL, in an empty folder. For each recipe the command trains first; then the SDK trains a
new model step by step. Losses, advantages, KL and, at the end, all weights must agree to float rounding.
"""
import json, math, pathlib, struct, subprocess, sys

import numpy as np
import tinker
from tinker import types

TINKC, URL = sys.argv[1], sys.argv[2]
STEPS, RANK, SEED, RATE = 20, 8, 5, 1e-3
MASK = (1 << 64) - 1
service = tinker.ServiceClient(base_url=URL, api_key="tml-agree")


def tinkc(*args):
    r = subprocess.run([TINKC, "--no-config", *map(str, args)], capture_output=True, text=True)
    if r.returncode:
        raise SystemExit(f"FAILED: tinkc {' '.join(map(str, args))}\n{r.stderr}")
    return r.stdout


def rows(folder):
    return [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]


# ---- what the command derives from seeds, in Python ----

def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def recipe_seed(seed, a, b, c):
    return mix(mix(mix(mix(seed) ^ a) ^ b) ^ c) >> 1


def shuffled(n, seed):
    order, state = list(range(n)), seed
    for i in range(n, 1, -1):
        state_next = (state + 0x9E3779B97F4A7C15) & MASK
        k = mix(state) % i
        state = state_next
        order[i - 1], order[k] = order[k], order[i - 1]
    return order


# ---- data ----

def conversation(question, answer):
    """Tokens and weights of one exchange in nano's format."""
    head = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    encode = lambda text: [int(x) for x in tinkc("tokenizer", "encode", "-m", "nano", "--special", text).split()]
    prompt, whole = encode(head), encode(head + answer + "<|im_end|>")
    return whole, [0.0] * len(prompt) + [1.0] * (len(whole) - len(prompt))


def tensor(values, dtype):
    return types.TensorData.from_numpy(np.asarray(values, dtype))


def datum(tokens, **inputs):
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": tensor(tokens[1:], np.int64),
                                       **{k: tensor(v, np.float32) for k, v in inputs.items()}})


# ---- comparing ----

worst = {}


def agree(recipe, what, ours, theirs, tolerance=2e-5):
    if (ours is None) != (theirs is None):
        raise SystemExit(f"FAILED: {recipe}: {what}: {ours} here, {theirs} in Python")
    off = float(np.max(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))))
    scale = max(1.0, float(np.max(np.abs(np.asarray(theirs, np.float64)))))
    worst[recipe, what] = max(worst.get((recipe, what), 0), off / scale)
    if not off <= tolerance * scale:
        raise SystemExit(f"FAILED: {recipe}: {what}: {ours} here, {theirs} in Python")


def tensors(folder):
    path = next(pathlib.Path(folder).rglob("*.safetensors"))
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    return {k: np.frombuffer(data[8 + n:][v["data_offsets"][0]:v["data_offsets"][1]], kinds[v["dtype"]])
            for k, v in head.items() if k != "__metadata__"}


def compare_weights(recipe, log_dir, client):
    path = [json.loads(line)["sampler_path"] for line in open(f"{log_dir}/checkpoints.jsonl") if "final" in line][-1]
    theirs = client.save_weights_for_sampler(name=f"py-{recipe}").result().path
    tinkc("checkpoint", "download", path, "-o", f"{recipe}-ours")
    tinkc("checkpoint", "download", theirs, "-o", f"{recipe}-theirs")
    a, b = tensors(f"{recipe}-ours"), tensors(f"{recipe}-theirs")
    assert a.keys() == b.keys(), recipe
    for k in a:
        agree(recipe, "weights", a[k], b[k])


def new_client():
    return service.create_lora_training_client(base_model="nano", rank=RANK, seed=SEED)


def adam(rate):
    return types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8)


def linear(step):
    return RATE * (1 - step / STEPS)


COMMON = ["-m", "nano", "--lora-rank", RANK, "--seed", SEED, "--lr", RATE, "--max-steps", STEPS, "--save-every", 0, "-q"]


def questions(n):
    return [(f"What is {i * 7 % 90 + 10} + {i * 13 % 90 + 10}?",
             f"{i * 7 % 90 + 10} + {i * 13 % 90 + 10} = {i * 7 % 90 + i * 13 % 90 + 20}") for i in range(n)]


# ---- the recipes ----

def sft():
    data = questions(12)
    with open("chats.jsonl", "w") as f:
        for q, a in data:
            f.write(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n")
    tinkc("train", "sft", "chats.jsonl", *COMMON, "--batch-size", 3, "--epochs", 5, "--eval-every", 0, "--reduction", "none",
          "--log-dir", "sft")
    examples = [conversation(q, a) for q, a in data]
    kept = shuffled(len(examples), 0)
    client, ours = new_client(), rows("sft")
    for step in range(STEPS):
        epoch, batch = divmod(step, 4)
        order = [kept[i] for i in shuffled(len(kept), epoch)]
        chosen = [examples[i] for i in order[batch * 3:batch * 3 + 3]]
        out = client.forward_backward([datum(t, weights=w[1:]) for t, w in chosen], "cross_entropy").result()
        client.optim_step(adam(linear(step))).result()
        total = sum(float(np.sum(w[1:])) for _, w in chosen)
        nll = -sum(float(np.dot(np.asarray(w[1:], np.float64), out.loss_fn_outputs[i]["logprobs"].to_numpy().astype(np.float64)))
                   for i, (_, w) in enumerate(chosen)) / total
        agree("sft", "loss", ours[step]["train_mean_nll"], nll)
        agree("sft", "learning rate", ours[step]["learning_rate"], linear(step), 1e-12)
    compare_weights("sft", "sft", client)


def recorded(folder, step, size):
    lines = [json.loads(line) for line in open(f"{folder}/iteration_{step:06d}/train_rollout_summaries.jsonl")]
    return [lines[i:i + size] for i in range(0, len(lines), size)]


def sample(sampler, prompt, seed):
    out = sampler.sample(prompt=types.ModelInput.from_ints(prompt), num_samples=1,
                         sampling_params=types.SamplingParams(max_tokens=12, temperature=1.0, seed=seed)).result().sequences[0]
    return list(out.tokens), np.asarray(out.logprobs, np.float32)


def policy_recipe(name, folder, groups, size, advantage_of, reference, coefficient, centred):
    """The loop of rl and of on-policy distillation: sampled again here, token by token the same."""
    client, ours = new_client(), rows(folder)
    for step in range(STEPS):
        sampler = client.save_weights_and_get_sampling_client()
        work = []
        for g, group in enumerate(recorded(folder, step, size)):
            rewards = np.array([r["total_reward"] for r in group], np.float64)
            for i, r in enumerate(group):
                n = int(sum(1 for m in r["mask"] if m == 0))
                tokens, logprobs = sample(sampler, r["tokens"][:n], recipe_seed(recipe_seed(SEED, step, g, 2), i, 0, 0))
                if tokens != r["tokens"][n:] or not np.array_equal(logprobs, np.asarray(r["logprobs"][n:], np.float32)):
                    raise SystemExit(f"FAILED: {name}: step {step}: Python samples other tokens")
                work.append((r["tokens"], n, logprobs, np.full(len(tokens), np.float32(advantage_of(rewards)[i]))))
        differences = []
        for tokens, n, logprobs, _ in work if coefficient else []:
            there = reference.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
            differences.append(logprobs.astype(np.float64) - np.asarray(there[n:], np.float32).astype(np.float64))
        if coefficient:
            mean = sum(d.sum() for d in differences) / sum(len(d) for d in differences)
            agree(name, "KL", ours[step]["kl_policy_base" if centred else "teacher_kl"], mean)
            work = [(t, n, lp, (a + coefficient * ((mean - d) if centred else -d)).astype(np.float32))
                    for (t, n, lp, a), d in zip(work, differences)]
        data = [datum(t, logprobs=np.concatenate([np.zeros(n - 1, np.float32), lp]),
                      advantages=np.concatenate([np.zeros(n - 1, np.float32), a])) for t, n, lp, a in work]
        out = client.forward_backward(data, "importance_sampling").result()
        client.optim_step(adam(RATE)).result()
        agree(name, "loss", ours[step]["optim/loss"], out.metrics["loss:sum"])
        trained = [out.loss_fn_outputs[i]["logprobs"].to_numpy()[n - 1:] for i, (_, n, _, _) in enumerate(work)]
        drift = np.concatenate([lp.astype(np.float64) - t for (_, _, lp, _), t in zip(work, trained)])
        agree(name, "kl_sample_train", [ours[step]["optim/kl_sample_train_v1"], ours[step]["optim/kl_sample_train_v2"]],
              [drift.mean(), (drift ** 2).mean() / 2])
    compare_weights(name, folder, client)


def rl():
    with open("sums.jsonl", "w") as f:
        for q, a in questions(10):
            f.write(json.dumps({"prompt": q, "answer": a}) + "\n")
    tinkc("train", "rl", "sums.jsonl", *COMMON, "--grader", "exact", "--grader", "regex:^[0-9]+$@0.25", "--group-size", 4,
          "--groups-per-batch", 2, "--epochs", 9, "--max-tokens", 12, "--max-steps-off-policy", 0, "--advantage", "std",
          "--kl-coef", 0.05, "--log-dir", "rl")
    base = service.create_sampling_client(base_model="nano")
    policy_recipe("rl", "rl", 2, 4, lambda r: (r - r.mean()) / (r.std() + 1e-6), base, 0.05, True)


def distill():
    teacher = new_client()  # any other weights: one supervised step away
    tokens, weights = conversation("What is 2 + 2?", "2 + 2 = 4")
    teacher.forward_backward([datum(tokens, weights=weights[1:])], "cross_entropy").result()
    teacher.optim_step(adam(1e-2)).result()
    path = teacher.save_weights_for_sampler(name="teacher").result().path
    tinkc("train", "distill", "sums.jsonl", *COMMON, "--teacher", path, "--group-size", 2, "--groups-per-batch", 2, "--epochs", 9,
          "--max-tokens", 12, "--max-steps-off-policy", 0, "--log-dir", "distill")
    policy_recipe("distill", "distill", 2, 2, lambda r: np.zeros(len(r)), service.create_sampling_client(model_path=path), 1.0,
                  False)


def dpo():
    data = [(q, a, a.split("= ")[1]) for q, a in questions(12)]
    with open("pairs.jsonl", "w") as f:
        for q, good, bad in data:
            f.write(json.dumps({"prompt": q, "chosen": good, "rejected": bad}) + "\n")
    tinkc("train", "dpo", "pairs.jsonl", *COMMON, "--batch-size", 3, "--epochs", 5, "--log-dir", "dpo")
    pairs = [[conversation(q, good), conversation(q, bad)] for q, good, bad in data]
    kept, beta = shuffled(len(pairs), 0), 0.1
    client, ours = new_client(), rows("dpo")
    start = client.save_weights_and_get_sampling_client()

    def weighted(logprobs, weights):
        return float(np.dot(np.asarray(weights, np.float64), np.asarray(logprobs, np.float64)))
    reference = [[weighted(np.asarray(start.compute_logprobs(types.ModelInput.from_ints(t)).result()[1:], np.float32), w[1:])
                  for t, w in pair] for pair in pairs]
    for step in range(STEPS):
        epoch, batch = divmod(step, 4)
        order = [kept[i] for i in shuffled(len(kept), epoch)]
        chosen = order[batch * 3:batch * 3 + 3]
        flat = [side for i in chosen for side in pairs[i]]
        out = client.forward([datum(t, weights=w[1:]) for t, w in flat], "cross_entropy").result()
        sums = [weighted(out.loss_fn_outputs[i]["logprobs"].to_numpy(), w[1:]) for i, (_, w) in enumerate(flat)]
        r = np.array(sums) - np.array([x for i in chosen for x in reference[i]])
        m = r[0::2] - r[1::2]
        loss = float(np.mean(np.log1p(np.exp(-beta * m))))
        slope = -beta / (1 + np.exp(beta * m)) / len(chosen)  # d loss / d r_chosen
        signs = np.stack([slope, -slope], 1).reshape(-1)
        client.forward_backward([datum(t, weights=np.float32(-signs[i]) * np.asarray(w[1:], np.float32))
                                 for i, (t, w) in enumerate(flat)], "cross_entropy").result()
        client.optim_step(adam(linear(step))).result()
        agree("dpo", "loss", ours[step]["dpo_loss"], loss)
        agree("dpo", "margin", ours[step]["margin"], float(np.mean(beta * m)))
        agree("dpo", "accuracy", ours[step]["accuracy"], float(np.mean(m > 0)), 1e-9)
    compare_weights("dpo", "dpo", client)


for recipe in (sft, rl, dpo, distill):
    recipe()
    for (name, what), off in worst.items():
        if name == recipe.__name__:
            print(f"ok: {name}: {what} agree over {STEPS} steps, largest relative difference {off:.1e}", flush=True)
