"""Trains and samples tiny models with the official Python SDK. Usage: every_family.py URL MODEL..."""
import sys, warnings

import numpy as np
import tinker
from tinker import types

warnings.simplefilter("ignore")
PROMPT = [7, 11, 300, 42, 5] * 14  # crosses an edge of the chunks of 64


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}", flush=True)


def ready(client):
    return client.result() if hasattr(client, "result") else client


def datum(tokens):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
                        "weights": types.TensorData.from_numpy(np.ones(len(tokens) - 1, np.float32))})


def train(client, name):
    losses = []
    for _ in range(3):
        out = client.forward_backward([datum(PROMPT)], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(out.metrics["loss:sum"])
    check(losses[2] < losses[0], f"{name}: three steps lower the loss")


def sample(client, name):
    sampler = ready(client.save_weights_and_get_sampling_client())
    prompt = types.ModelInput.from_ints(PROMPT)
    answer = sampler.sample(prompt, num_samples=2, sampling_params=types.SamplingParams(max_tokens=6, seed=1)).result()
    check(all(len(s.tokens) > 0 for s in answer.sequences), f"{name}: samples")
    for s in answer.sequences:
        seen = client.forward([datum(PROMPT + list(s.tokens))], "cross_entropy").result()
        again = seen.loss_fn_outputs[0]["logprobs"].to_numpy()[-len(s.tokens):]
        check(np.array_equal(np.array(s.logprobs, np.float32), again), f"{name}: trainer and sampler agree to the bit")
    return sampler


def refuse_image(sampler, name):
    image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=4)
    prompt = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1, 2]), image])
    try:
        sampler.sample(prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=1)).result()
    except tinker.TinkerError as e:
        check("image" in str(e), f"{name}: an image is refused by name")
    else:
        raise SystemExit(f"FAILED: {name}: an image was taken")


def main():
    service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-test")
    for name in sys.argv[2:]:
        client = ready(service.create_lora_training_client(base_model=name, rank=4, seed=1))
        train(client, name)
        refuse_image(sample(client, name), name)


main()
