"""What the official Python SDK, unmodified, does with the engine behind a server.

Usage: python_sdk.py URL OUT.json. Creates a session, trains with each loss, saves, loads, samples
with log-probabilities, lists checkpoints, downloads one; writes the numbers it saw to OUT.json, so
that another client on the same engine can be compared with them.
"""
import asyncio, inspect, io, json, math, sys, tarfile, urllib.request, warnings

import numpy as np
import tinker
from tinker import types

from sdk_methods import everything_else
from sdk_surface import Surface

surface = Surface()  # before anything is called
warnings.simplefilter("ignore")  # much of what is called here is deprecated

URL, OUT = sys.argv[1], sys.argv[2]
seen = {}


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}", flush=True)


def datum(tokens, **inputs):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
                        **{k: types.TensorData.from_numpy(np.asarray(v, np.float32))
                           for k, v in inputs.items()}})


def ready(client):
    """The client itself: since 0.38 a call that makes one returns a future of it, which is also used as the client in most places here."""
    return client.result() if hasattr(client, "result") else client


def logprobs_of(result, i=0):
    return result.loss_fn_outputs[i]["logprobs"].to_numpy()


TEXT = [[70, 111, 120, 32, 97, 110, 100, 32, 104, 101, 110], [10, 20, 30, 40, 50, 60]]


def train_each_loss(client):
    n = [len(t) - 1 for t in TEXT]
    base = client.forward([datum(t, weights=np.ones(len(t) - 1)) for t in TEXT],
                          "cross_entropy").result()
    q = [logprobs_of(base, i) for i in range(2)]
    check(all(len(q[i]) == n[i] and np.all(q[i] < 0) for i in range(2)), "forward gives log-probs")
    losses = {}
    data = [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT]
    out = client.forward_backward(data, "cross_entropy").result()
    losses["cross_entropy"] = out.metrics["loss:sum"]
    check(abs(out.metrics["loss:sum"] + sum(float(x.sum()) for x in q)) < 1e-3,
          "cross_entropy is the sum of -w lp")
    for loss, config in (("importance_sampling", None), ("ppo", {"clip_low_threshold": 0.9}),
                         ("cispo", None), ("dro", {"beta": 0.1})):
        data = [datum(t, logprobs=q[i] - 0.05, advantages=np.linspace(-1, 1, n[i]))
                for i, t in enumerate(TEXT)]
        out = client.forward_backward(data, loss, loss_fn_config=config).result()
        losses[loss] = out.metrics["loss:sum"]
        check(math.isfinite(losses[loss]), f"{loss} gives a loss")
        check(np.array_equal(logprobs_of(out, 1), q[1]), f"{loss} sees the same log-probs")
    seen["losses"] = losses
    step = client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    check(step.metrics["optim/step"] == 1.0, "optim_step counts")
    seen["grad_norm"] = step.metrics["optim/grad_norm"]
    after = client.forward(data[:0] or [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT],
                           "cross_entropy").result()
    seen["after_step"] = [logprobs_of(after, i).tolist() for i in range(2)]
    check(not np.array_equal(logprobs_of(after, 0), q[0]), "the step changed the model")


class Leaf:
    """Stands in for a torch tensor where torch is not installed: what the SDK does with the
    log-probabilities before and after a custom loss, and nothing more."""

    def __init__(self, data):
        self.value, self.grad = np.asarray(data, np.float32), None

    def reshape(self, shape):
        self.value = self.value.reshape(shape)
        return self

    def clone(self):
        return self

    detach = clone

    def requires_grad_(self, _):
        return self


class Squares:
    """The sum of the squares of all log-probabilities, with its derivative."""

    def __init__(self, leaves):
        self.leaves = leaves

    def detach(self):
        return np.array([np.square(leaf.value).sum() for leaf in self.leaves])

    def backward(self):
        for leaf in self.leaves:
            leaf.grad = 2 * leaf.value


async def custom_async(client, data, loss_fn):
    return await awaited(client.forward_backward_custom_async(data, loss_fn))


def custom_loss(service):
    """forward_backward_custom leaves the gradient that its weights, worked out by hand, leave."""
    from tinker.lib.public_interfaces import training_client as module
    if module.torch is None:
        module.torch = type("torch", (), {"tensor": staticmethod(Leaf)})
    stands_in = module.torch.tensor is Leaf
    data = [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT]

    def loss_fn(_, logprobs):
        total = Squares(logprobs) if stands_in else sum((lp * lp).sum() for lp in logprobs)
        return total, {"total": 1.0}

    def norm(client):
        return client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["optim/grad_norm"]

    client = ready(service.create_lora_training_client(base_model="nano", rank=8, seed=42))
    try:
        out = client.forward_backward_custom(data, loss_fn).result()
    finally:
        if stands_in:
            module.torch = None
    check(out.metrics["total"] == 1.0 and len(out.loss_fn_outputs) == 2, "forward_backward_custom")
    by_custom = norm(client)
    if stands_in:
        module.torch = type("torch", (), {"tensor": staticmethod(Leaf)})
    try:
        asyncio.run(custom_async(client, data, loss_fn))
    finally:
        if stands_in:
            module.torch = None
    check(norm(client) == by_custom, "forward_backward_custom_async")
    lps = client.forward(data, "cross_entropy").result()
    weighted = [datum(t, weights=-2 * logprobs_of(lps, i)) for i, t in enumerate(TEXT)]
    client.forward_backward(weighted, "cross_entropy").result()
    check(by_custom > 0 and norm(client) == by_custom, "its gradient is that of its weights")


def fx_node(op, name, target, *args):
    return types.CustomLossNode(op=op, name=name, target=target, args=list(args))


def squares_as_nodes(multiply="operator.mul"):
    """What torch.fx makes of the sum of the squares of log-probs times w, and of two metrics."""
    def ref(name):
        return {"ref": name}

    metrics = {"custom/square:mean": ref("sum_1"), "custom/n:sum": ref("numel")}
    return types.CustomLossGraph(nodes=[
        fx_node("placeholder", "logprobs", "logprobs"),
        fx_node("placeholder", "w", "w"),
        fx_node("call_function", "mul", multiply, ref("logprobs"), ref("logprobs")),
        fx_node("call_function", "mul_1", "operator.mul", ref("mul"), ref("w")),
        fx_node("call_method", "sum_1", "sum", ref("mul_1")),
        fx_node("call_method", "numel", "numel", ref("mul_1")),
        fx_node("output", "output", "output", {"tuple": [ref("sum_1"), {"dict": metrics}]})])


def loss_on_the_server(service):
    """A loss that is uploaded, with nodes written by hand in place of those that torch traces: one pass leaves
    the gradient that weights worked out by hand leave."""
    if not hasattr(service, "create_custom_loss"):
        return
    from tinker.lib.public_interfaces import custom_loss as losses, service_client as module
    from tinker.lib.public_interfaces import training_client as trainer
    inputs = (types.CustomLossInput(name="logprobs", rank=1), types.CustomLossInput(name="w", rank=1))
    code = type("graph", (), {"code": "squares"})()
    real = module.trace_loss, module.encode_graph, trainer.torch
    module.trace_loss = lambda fn, ranks, session: losses.LossHandle("squares", inputs, session, code)
    module.encode_graph = lambda handle: squares_as_nodes()
    trainer.torch = trainer.torch or object()
    client = service.create_lora_training_client(base_model="nano", rank=8, seed=42)

    def norm():
        return client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["optim/grad_norm"]

    try:
        handle = service.create_custom_loss(None, {"logprobs": 1, "w": 1}).result()
        check(handle.loss_id, f"create_custom_loss: {handle.loss_id}")
        data = [datum(t, w=np.full(len(t) - 1, 0.5)) for t in TEXT]
        out = client.forward_backward_custom(data, handle).result()
        many = [datum([1 + i % 200, 2, 3], w=[1.0, 1.0]) for i in range(1500)]
        chunks = client.forward_backward_custom(many, handle).result()
        norm()
        client.forward_backward_custom(data, handle).result()
        by_server = norm()
        try:
            client.forward_backward_custom([datum(TEXT[0], w=[1.0])], handle).result()
            check(True, "an input of one element is for all tokens")
        except tinker.RequestFailedError as e:
            check(False, f"an input of one element is for all tokens: {e}")
        try:
            client.forward_backward_custom([datum(TEXT[0], w=[1.0, 2.0])], handle).result()
            check(False, "shapes that do not match fail")
        except tinker.RequestFailedError as e:
            check("node 'mul_1'" in str(e) and "do not match" in str(e), f"shapes that do not match fail: {e}")
        module.encode_graph = lambda handle: squares_as_nodes("torch.fft.fft")
        code.code = "other"
        try:
            service.create_custom_loss(None, {"logprobs": 1, "w": 1}).result()
            check(False, "an operation that is not on the list is refused")
        except tinker.BadRequestError as e:
            check("operation torch.fft.fft is not supported" in str(e), f"refused by its name: {e}")
    finally:
        module.trace_loss, module.encode_graph, trainer.torch = real
    norm()
    lps = [logprobs_of(out, i).astype(np.float64) for i in range(2)]
    squares = [0.5 * np.square(lp).sum() for lp in lps]
    check(abs(out.metrics["loss:sum"] - sum(squares)) < 1e-5 * sum(squares), "the loss is that of its nodes")
    check(abs(out.metrics["custom/square:mean"] - sum(squares) / 2) < 1e-5 * sum(squares), "a mean is over datums")
    check(out.metrics["custom/n:sum"] == sum(len(t) - 1 for t in TEXT), "a sum is a sum")
    total = sum(np.square(logprobs_of(chunks, i).astype(np.float64)).sum() for i in range(1500))
    check(abs(chunks.metrics["custom/square:mean"] * 1500 - total) < 1e-5 * total
          and abs(chunks.metrics["loss:sum"] - total) < 1e-5 * total
          and chunks.metrics["custom/n:sum"] == 3000, "metrics of chunks are those of the whole")
    weighted = [datum(t, weights=-logprobs_of(out, i)) for i, t in enumerate(TEXT)]
    client.forward_backward(weighted, "cross_entropy").result()
    check(by_server > 0 and norm() == by_server, "its gradient is that of its weights")


def more_losses(service):
    """Soft targets, dense and sparse; thresholds of each token; what clipping and decay say."""
    client = service.create_lora_training_client(base_model="nano", rank=4, seed=3)
    n = len(TEXT[0]) - 1
    tokens = np.stack([np.array(TEXT[0][1:]), np.arange(n) + 300], 1).astype(np.int64)
    weights = np.zeros((n, 2), np.float32)
    weights[3], weights[7] = (0.25, 0.75), (1.0, 0.0)

    def soft(targets, w):
        return types.Datum(model_input=types.ModelInput.from_ints(TEXT[0][:-1]),
                           loss_fn_inputs={"target_tokens": targets, "weights": w})

    def sparse(dense, dtype):
        where = dense != 0
        crow = np.concatenate([[0], np.cumsum(where.sum(1))]).tolist()
        return types.TensorData(data=dense[where], dtype=dtype, shape=list(dense.shape),
                                sparse_crow_indices=crow, sparse_col_indices=np.nonzero(where)[1].tolist())

    dense = soft(types.TensorData.from_numpy(tokens), types.TensorData.from_numpy(weights))
    kept = np.where(weights != 0, tokens, 0)
    packed = soft(sparse(kept, "int64"), sparse(weights, "float32"))
    one = client.forward_backward([dense], "cross_entropy").result()
    step = client.optim_step(types.AdamParams(learning_rate=0.0, grad_clip_norm=0.5)).result().metrics
    check(logprobs_of(one).shape == (n, 2), "soft targets have log-probs of their shape")
    check(abs(step["optim/clip_coef"] * step["optim/grad_norm"] - 0.5) < 1e-4, "gradients are clipped")
    two = client.forward_backward([packed], "cross_entropy").result()
    again = client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics
    check(two.metrics["loss:sum"] == one.metrics["loss:sum"] and
          again["optim/grad_norm"] == step["optim/grad_norm"], "sparse targets are the same targets")
    q = logprobs_of(client.forward([datum(TEXT[0], weights=np.ones(n))], "cross_entropy").result())
    rl = dict(logprobs=q - 0.5, advantages=np.ones(n))
    by_config = client.forward_backward([datum(TEXT[0], **rl)], "ppo",
                                        loss_fn_config={"clip_high_threshold": 1.1}).result()
    by_token = client.forward_backward([datum(TEXT[0], **rl, clip_low_threshold=np.full(n, 0.8),
                                              clip_high_threshold=np.full(n, 1.1))], "ppo").result()
    check(abs(by_config.metrics["loss:sum"] + 1.1 * n) < 1e-3 and
          by_token.metrics["loss:sum"] == by_config.metrics["loss:sum"], "thresholds of each token")
    check(by_config.metrics["clip_frac:mean"] == 1.0, "clip_frac")


def refusals(service):
    """What cannot be done is said in words, at once, and the session continues."""
    def refused(what, call, *words):
        try:
            call()
        except Exception as e:
            check(any(w in str(e) for w in words), f"{what}: {str(e)[:90]}")
        else:
            check(False, what)

    refused("an unknown base model", lambda: ready(service.create_lora_training_client(base_model="none")),
            "Unknown base model")
    refused("a rank of 0", lambda: ready(service.create_lora_training_client(base_model="nano", rank=0)),
            "rank must be positive")
    client = service.create_lora_training_client(base_model="nano", rank=4)
    sampler = service.create_sampling_client(base_model="nano")
    ask = lambda prompt, **p: sampler.sample(
        prompt=types.ModelInput.from_ints(prompt), num_samples=1,
        sampling_params=types.SamplingParams(**p)).result()
    refused("a prompt that is too long", lambda: ask([1] * 3000, max_tokens=5), "context window")
    refused("a token that does not exist", lambda: ask([10 ** 6], max_tokens=5), "vocabulary")
    refused("a stop token that does not exist", lambda: ask([1], max_tokens=5, stop=[1, 10 ** 6]), "stop token 1")
    refused("metadata of two megabytes", lambda: ready(tinker.ServiceClient(  # at once, not after retries
        base_url=URL, api_key="tml-x", user_metadata={"a": "x" * 2000000}).create_sampling_client(base_model="nano")),
            "too large")
    refused("a negative temperature", lambda: ask([1], max_tokens=5, temperature=-1.0), "temperature")
    long = [1] * 3000
    refused("a datum that is too long", lambda: client.forward_backward(
        [datum(long, weights=np.ones(2999))], "cross_entropy").result(), "PromptTooLong")
    refused("a target outside the vocabulary in dro", lambda: client.forward_backward(
        [datum([1, 2, 5000], logprobs=[-1, -1], advantages=[1, 0])], "dro").result(), "target 5000")
    refused("weights that are not finite", lambda: client.forward_backward(
        [datum(TEXT[1], weights=[1, math.nan, 1, 1, 1])], "cross_entropy").result(), "NonFinite")
    refused("a negative learning rate", lambda: client.optim_step(
        types.AdamParams(learning_rate=-1.0)).result(), "learning_rate")
    refused("a name with a slash", lambda: client.save_state("a/b").result(), "checkpoint name")
    saved = client.save_state("kept", ttl_seconds=3600).result().path
    check(client.save_state("kept", overwrite=True).result().path == saved, "overwrite")
    other = ready(service.create_lora_training_client(base_model="nano", rank=8))
    refused("weights of another rank", lambda: other.load_state(saved).result(), "rank 4")
    check(other.optim_step(types.AdamParams()).result().metrics["optim/step"] == 1.0,
          "and training continues")


def copied_sampler(service):
    """A sampling client that was pickled counts from elsewhere and uses the same session."""
    import pickle
    client = service.create_sampling_client(base_model="nano")
    params = types.SamplingParams(max_tokens=6, temperature=0.7, seed=11, top_k=50, top_p=0.9)
    ask = lambda c: c.sample(prompt=types.ModelInput.from_ints(TEXT[1]), num_samples=4,
                             sampling_params=params).result()
    here = ask(client)
    try:
        copy = pickle.loads(pickle.dumps(client))
    except Exception as e:
        print(f"skipped: this version does not pickle here: {e}")
        return
    check([s.tokens for s in ask(copy).sequences] == [s.tokens for s in here.sequences],
          "a copied client samples the same")
    endless = client.sample(prompt=types.ModelInput.from_ints(TEXT[1]), num_samples=1,
                            sampling_params=types.SamplingParams(max_tokens=40, stop=[])).result()
    check(len(endless.sequences[0].tokens) == 40, "stop=[] stops at nothing")


def many_chunks(client):
    data = [datum([1 + i % 200, 2, 3, 4 + i % 100], weights=[0.0, 1.0, 1.0]) for i in range(2500)]
    out = client.forward_backward(data, "cross_entropy").result()
    check(len(out.loss_fn_outputs) == 2500, "2500 datums in chunks that arrive out of order")
    check(out.metrics["num_tokens:sum"] == 7500, "metrics of chunks add up")
    client.optim_step(types.AdamParams(learning_rate=0.0)).result()


def failures(client):
    try:
        client.forward_backward([datum(TEXT[0])], "cross_entropy").result()
        check(False, "a missing input fails")
    except tinker.RequestFailedError as e:
        check("weights" in str(e) and "user" in str(e.category).lower(), f"a missing input fails: {e}")
    try:
        client.forward_backward([datum(TEXT[0], weights=np.ones(10))], "no_such_loss").result()
        check(False, "an unknown loss fails")
    except tinker.RequestFailedError as e:
        check("no_such_loss" in str(e), "an unknown loss fails")
    client.optim_step(types.AdamParams(learning_rate=0.0)).result()
    check(True, "training continues after failures")


def save_and_load(service, client):
    saved = client.save_state("first").result().path
    check(saved.endswith("/weights/first"), f"save_state: {saved}")
    try:
        client.save_state("first").result()
        check(False, "a name is taken once")
    except tinker.RequestFailedError as e:
        check("already exists" in str(e), "a name is taken once")
    probe = [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT]
    before = logprobs_of(client.forward(probe, "cross_entropy").result())
    client.forward_backward(probe, "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    changed = logprobs_of(client.forward(probe, "cross_entropy").result())
    client.load_state_with_optimizer(saved).result()
    again = logprobs_of(client.forward(probe, "cross_entropy").result())
    check(np.array_equal(before, again) and not np.array_equal(before, changed),
          "load_state brings the same bits back")
    other = service.create_training_client_from_state(saved)
    check(np.array_equal(before, logprobs_of(other.forward(probe, "cross_entropy").result())),
          "create_training_client_from_state")
    return saved


def sample(service, client):
    sampler_path = client.save_weights_for_sampler("sampler-1").result().path
    check("/sampler_weights/sampler-1" in sampler_path, f"save_weights_for_sampler: {sampler_path}")
    prompt = types.ModelInput.from_ints(TEXT[0])
    params = types.SamplingParams(max_tokens=12, temperature=1.0, seed=7)
    named = service.create_sampling_client(model_path=sampler_path)
    out = named.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    check(len(out.sequences) == 3 and all(len(s.tokens) == len(s.logprobs) for s in out.sequences),
          "three samples with log-probs")
    check(len({tuple(s.tokens) for s in out.sequences}) > 1, "samples of one request differ")
    one = named.sample(prompt=prompt, num_samples=1, sampling_params=params).result()
    check(one.sequences[0].tokens == out.sequences[0].tokens, "a seed repeats")
    seen["sample"] = {"tokens": list(one.sequences[0].tokens),
                      "logprobs": list(one.sequences[0].logprobs)}
    ephemeral = client.save_weights_and_get_sampling_client()
    two = ephemeral.sample(prompt=prompt, num_samples=1, sampling_params=params).result()
    check(list(two.sequences[0].logprobs) == seen["sample"]["logprobs"],
          "ephemeral weights sample the same bits")
    lp = named.compute_logprobs(prompt).result()
    check(lp[0] is None and len(lp) == len(TEXT[0]), "compute_logprobs has a leading None")
    forward = logprobs_of(client.forward([datum(TEXT[0], weights=np.ones(len(TEXT[0]) - 1))],
                                         "cross_entropy").result())
    check(np.array_equal(np.array(lp[1:], np.float32), forward),
          "sampler and trainer agree in every bit")
    top = named.sample(prompt=prompt, num_samples=1, sampling_params=params,
                       include_prompt_logprobs=True, topk_prompt_logprobs=3).result()
    check(top.topk_prompt_logprobs[0] is None and len(top.topk_prompt_logprobs[1]) == 3,
          "top-k prompt log-probs")
    base = service.create_sampling_client(base_model="nano")
    if takes(base.sample, "topk_sample_logprobs"):
        only_end = {"prompt_logprobs_last_n": 2} if takes(base.sample, "prompt_logprobs_last_n") else {}
        more = named.sample(prompt=prompt, num_samples=2, sampling_params=params, topk_sample_logprobs=4,
                            include_prompt_logprobs=True, **only_end).result()
        check(list(more.sequences[0].logprobs) == seen["sample"]["logprobs"] and
              all(len(row) == 4 and row[0][1] >= lp for s in more.sequences
                  for row, lp in zip(s.topk_logprobs, s.logprobs, strict=True)), "top-k of sampled tokens")
        check(more.prompt_logprobs == ([None] * (len(lp) - 2) + lp[-2:] if only_end else lp), "log-probs of a prompt's end")
    greedy = base.sample(prompt=prompt, num_samples=1, sampling_params=types.SamplingParams(
        max_tokens=5, temperature=0.0)).result()
    check(len(greedy.sequences[0].tokens) <= 5, "the bare model samples")
    stop = base.sample(prompt=prompt, num_samples=1, sampling_params=types.SamplingParams(
        max_tokens=50, temperature=0.0, stop=[greedy.sequences[0].tokens[0]])).result()
    check(len(stop.sequences[0].tokens) == 1, "stop tokens stop")
    return sampler_path


async def many_samples(service):
    client = await service.create_sampling_client_async(base_model="nano")
    params = types.SamplingParams(max_tokens=4, temperature=1.0)
    results = await asyncio.gather(*[
        client.sample_async(prompt=types.ModelInput.from_ints([i % 200 + 1, 5, 6]), num_samples=1,
                            sampling_params=params) for i in range(200)])
    check(len(results) == 200, "200 samples at once")


def takes(call, parameter):
    """Releases differ in what a call takes."""
    return parameter in inspect.signature(call).parameters


async def awaited(future):
    """Some methods give the result at once, some a future of it, by version."""
    value = await future
    return await value.result_async() if hasattr(value, "result_async") else value


async def asynchronous(service):
    """The same calls in their asynchronous forms; two clients side by side equal each alone."""
    capabilities = await service.get_server_capabilities_async()
    check(capabilities.supported_models[0].max_context_length > 0, "get_server_capabilities_async")
    probe = [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT]
    adam = types.AdamParams(learning_rate=1e-3)

    async def train(client, steps):
        for _ in range(steps):  # both are under way before either is waited for
            passed = await client.forward_backward_async(probe, "cross_entropy")
            stepped = await client.optim_step_async(adam)
            out, step = await passed.result_async(), await stepped.result_async()
        return out.metrics["loss:sum"], step.metrics["optim/step"]

    make = service.create_lora_training_client_async
    alone = await train(await make(base_model="nano", rank=4, seed=5), 3)
    one, two = await make(base_model="nano", rank=4, seed=5), await make(base_model="nano", rank=16)
    beside, _ = await asyncio.gather(train(one, 3), train(two, 3))
    check(beside == alone, "two clients interleaved: each as if alone")
    info = await one.get_info_async()
    check(info.lora_rank == 4, "get_info_async")
    saved = (await awaited(one.save_state_async("async", ttl_seconds=3600))).path
    before = logprobs_of(await awaited(one.forward_async(probe, "cross_entropy")))
    await train(one, 1)
    await awaited(one.load_state_async(saved))
    check(np.array_equal(before, logprobs_of(await awaited(one.forward_async(probe, "cross_entropy")))),
          "load_state_async")
    check((await train(one, 1))[1] == 1.0, "load_state without the optimizer resets it")
    await awaited(one.load_state_with_optimizer_async(saved))
    check((await train(one, 1))[1] == 4.0, "load_state_with_optimizer_async brings its steps back")
    both = await service.create_training_client_from_state_with_optimizer_async(saved)
    check(np.array_equal(before, logprobs_of(await awaited(both.forward_async(probe, "cross_entropy")))),
          "create_training_client_from_state_with_optimizer_async")
    check((await train(both, 1))[1] == 4.0, "and its optimizer continues")
    plain = await service.create_training_client_from_state_async(saved)
    check((await train(plain, 1))[1] == 1.0, "create_training_client_from_state_async has none")
    path = (await awaited(both.save_weights_for_sampler_async("async-sampler"))).path
    sampler = await both.create_sampling_client_async(path)
    folder = await sampler.get_base_model_async()  # not "nano": the SDK opens it to find the tokenizer
    check(folder.rstrip("/").endswith("/models/nano"), f"get_base_model_async: {folder}")
    again = await service.create_sampling_client_async(base_model=folder)
    check(await again.get_base_model_async() == folder, "a model's folder is a name of it too")
    prompt = types.ModelInput.from_ints(TEXT[1])
    lp = await sampler.compute_logprobs_async(prompt)
    check(len(lp) == len(TEXT[1]) and lp[0] is None, "compute_logprobs_async")
    ephemeral = await both.save_weights_and_get_sampling_client_async()
    check(await ephemeral.compute_logprobs_async(prompt) == lp, "two samplers of the same weights")
    out = await sampler.sample_async(prompt=prompt, num_samples=2, sampling_params=types.SamplingParams(
        max_tokens=30, temperature=0.0, stop=["e"]))
    check(all(len(s.tokens) <= 30 for s in out.sequences), "stop strings")
    training = await service.create_sampling_client_async(model_path=saved)
    check(len((await training.sample_async(prompt=prompt, num_samples=1, sampling_params=types
               .SamplingParams(max_tokens=3))).sequences) == 1, "a training checkpoint samples too")
    for bad in ("tinker://nobody/weights/none", "nonsense"):
        try:
            await service.create_sampling_client_async(model_path=bad)
            check(False, f"{bad} is refused")
        except Exception as e:
            check("404" in str(e) or "400" in str(e) or "path" in str(e).lower(), f"{bad} is refused")


async def awaitable(service):
    """Since 0.38 every call returns a future that is awaited, waited for, or used as before; all three give the same."""
    made = service.create_lora_training_client(base_model="nano", rank=4, seed=5)
    if not inspect.isawaitable(made):
        return
    check("pending" in repr(made) or "TrainingClient" in repr(made), "a future of a client shows its state")
    client, later = await made, await made.result_async(timeout=60)
    check(client is later and client is await made.coroutine() and made.future().done() and made.model_id == client.model_id, "a client that is awaited")
    probe = [datum(t, weights=np.ones(len(t) - 1)) for t in TEXT]
    passed, stepped = client.forward_backward(probe, "cross_entropy"), client.optim_step(types.AdamParams(learning_rate=1e-3))
    out, step = await asyncio.gather(passed, stepped)
    check(out.metrics["loss:sum"] > 0 and step.metrics["optim/step"] == 1.0, "passes and steps are awaited")
    path = (await client.save_weights_for_sampler("awaited")).path
    sampler = await service.create_sampling_client(model_path=path)
    prompt, params = types.ModelInput.from_ints(TEXT[1]), types.SamplingParams(max_tokens=5, seed=3)
    task = asyncio.create_task(sampler.sample(prompt, 2, params).coroutine())
    again = await sampler.sample(prompt, 2, params)
    check([s.tokens for s in (await task).sequences] == [s.tokens for s in again.sequences], "samples are awaited")
    check(await sampler.compute_logprobs(prompt) == await sampler.compute_logprobs_async(prompt), "both styles give the same")
    rest = service.create_rest_client()
    check(await rest.get_training_run(client.model_id).coroutine() == await rest.get_training_run_async(client.model_id),
          "both styles give the same records")
    check("nano" in [m.model_name for m in (await rest.get_server_capabilities()).supported_models],
          "RestClient.get_server_capabilities")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        await sampler.compute_logprobs_async(prompt)
    check(any(w.category is FutureWarning for w in said), "an _async twin says that it is deprecated")


def more_rest(service, saved):
    import datetime
    rest = service.create_rest_client()
    run_id = saved.split("/")[2]
    session_id = run_id.split(":")[0]
    check(rest.get_training_run_by_tinker_path(saved).result().training_run_id == run_id,
          "get_training_run_by_tinker_path")
    pages = [rest.list_training_runs(limit=1, offset=i).result() for i in range(2)]
    check(len({p.training_runs[0].training_run_id for p in pages}) == 2 and
          pages[0].cursor.total_count >= 2, "runs come in pages")
    session = rest.get_session(session_id).result()
    check(run_id in session.training_run_ids and session.sampler_ids, "get_session lists both kinds")
    sampler = rest.get_sampler(session.sampler_ids[0]).result()
    check(sampler.sampler_id == session.sampler_ids[0] and sampler.base_model.split("/")[-1] == "nano",
          f"get_sampler: {sampler.base_model}")
    if hasattr(rest, "assign_session_project"):
        rest.assign_session_project(session_id, "project-7").result()
        runs = rest.list_training_runs(project_id="project-7", limit=100).result().training_runs
        check(run_id in [r.training_run_id for r in runs], "assign_session_project, and by project")
        none = rest.list_training_runs(project_id="no-such-project").result().training_runs
        check(not none, "another project has none")
    if hasattr(rest, "get_audit_log"):
        check(len(rest.get_audit_log().result().entries) > 0, "get_audit_log")
    if hasattr(rest, "get_billing_usage"):
        hour = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
        usage = rest.get_billing_usage(hour - datetime.timedelta(hours=1),
                                       hour + datetime.timedelta(hours=1)).result()
        check(len(usage.data) > 0 and session_id in usage.sessions, "get_billing_usage")
    if hasattr(rest, "export_session_trace"):
        try:
            rest.export_session_trace(session_id).result()
            check(False, "traces are not offered")
        except Exception as e:
            check("not supported" in str(e) or "failed" in str(e).lower(), "traces are not offered")
    for call in (lambda: rest.get_training_run("nobody:train:0").result(),
                 lambda: rest.delete_checkpoint_from_tinker_path(saved + "-not").result()):
        try:
            call()
            check(False, "what is not there is not found")
        except tinker.NotFoundError:
            check(True, "what is not there is not found")


def external_weights(client, rest):
    """Saved as plain files, each behind a link of its own; training continues afterwards."""
    path = client.save_weights_external("x").result().path
    check("/external_weights/" in path, "save_weights_external: " + path)
    files = rest.get_external_weights_urls(path).result().urls
    check({"adapter_config.json", "adapter_model.safetensors"} <= set(files), "get_external_weights_urls")
    with urllib.request.urlopen(files["adapter_config.json"]) as answer:
        check(json.load(answer)["r"] == 4, "a link gives its file without a key")
    client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
    check(True, "training continues after an external save")


def newer_calls(service, saved):
    """What releases after 0.25 have beyond it: a real answer, or a clear refusal that blocks nothing."""
    rest = service.create_rest_client()
    session_id = saved.split("/")[2].split(":")[0]
    if hasattr(rest, "search_sessions"):
        import warnings
        warnings.simplefilter("ignore")
        from tinker.types import SessionSearchRequest
        found, request = [], SessionSearchRequest(limit=1)
        while True:
            page = rest.search_sessions(request).result()
            found += page.sessions
            if page.next_cursor is None:
                break
            request = request.model_copy(update={"cursor": page.next_cursor})
        mine = {s.session_id: s for s in found}
        check(len(mine) == len(found) and mine[session_id].status.type == "active" and
              mine[session_id].checkpoints_count > 0 and mine[session_id].project_id == "project-7",
              "search_sessions finds each session once")
        check([s.created_at for s in found] == sorted((s.created_at for s in found), reverse=True),
              "search_sessions: newest first")
        none = rest.search_sessions(SessionSearchRequest(display_name="no such name")).result()
        check(not none.sessions, "search_sessions by a name that nobody has")
    if hasattr(rest, "get_current_checkpoint_storage_usage"):
        usage = rest.get_current_checkpoint_storage_usage(project_id="project-7").result()
        check(len(usage.data) == 1 and usage.data[0].checkpoint_count > 0 and usage.data[0].size_bytes > 0,
              "get_current_checkpoint_storage_usage")
    if hasattr(rest, "copy_weights"):
        copy = rest.copy_weights(saved, "project-8", ttl_seconds=7200).result()
        again = rest.copy_weights(saved, "project-8").result()
        check(len({copy, again, saved}) == 3 and copy.split("/")[3:] == saved.split("/")[3:], "copy_weights")
        info = rest.get_weights_info_by_tinker_path(saved).result()
        check(rest.get_weights_info_by_tinker_path(copy).result() == info, "a copy is what it is a copy of")
        runs = rest.list_training_runs(project_id="project-8").result().training_runs
        check({r.training_run_id for r in runs} == {p.split("/")[2] for p in (copy, again)},
              "copies are in runs of their own")
        heir = service.create_training_client_from_state_with_optimizer(copy)
        check(heir.get_info().lora_rank == info.lora_rank, "training continues from a copy")
        try:
            rest.copy_weights(saved + "x", "project-8").result()
            check(False, "a copy of nothing")
        except tinker.NotFoundError as e:
            check("no such checkpoint" in str(e), "a copy of nothing")
    client = ready(service.create_lora_training_client(base_model="nano", rank=4))
    if takes(client.save_state, "user_metadata"):
        for save in client.save_state, client.save_weights_for_sampler:
            path = save("noted", user_metadata={"step": "3", "by": "me"}).result().path
            listed = rest.list_checkpoints(path.split("/")[2]).result().checkpoints
            check([c.user_metadata for c in listed if c.tinker_path == path] == [{"step": "3", "by": "me"}],
                  "metadata of a checkpoint: " + "/".join(path.split("/")[3:]))
    if hasattr(client, "save_weights_external"):
        external_weights(client, rest)
    if takes(service.create_lora_training_client, "optimizer"):
        try:
            ready(service.create_lora_training_client(base_model="nano", rank=4,
                                                      optimizer=types.DimuonOptimizerConfig()))
            check(False, "other optimizers are not offered")
        except Exception as e:
            check("dimuon" in str(e).lower(), "other optimizers are not offered")
    if hasattr(rest, "search_sessions"):
        with_name = tinker.ServiceClient(base_url=URL, api_key="tml-interop", display_name="Nightly Run")
        ready(with_name.create_lora_training_client(base_model="nano", rank=4))
        name = with_name.create_rest_client().search_sessions(SessionSearchRequest(display_name="night RUN")).result()
        check(len(name.sessions) == 1 and name.sessions[0].display_name == "Nightly Run", "search_sessions by name")
        with_name.close("success", detail="all done").result()
        name = rest.search_sessions(SessionSearchRequest(display_name="nightly")).result()
        status = name.sessions[0].status
        check(status.type == "client_finished" and status.reason.type == "success" and
              status.detail == "all done", "close() finishes the session")
    elif hasattr(service, "close"):
        closed = tinker.ServiceClient(base_url=URL, api_key="tml-interop").close("success")
        check(closed.result() is None, "close() finishes the session")


def rest(service, saved, sampler_path):
    rest = service.create_rest_client()
    run_id = saved.split("/")[2]
    run = rest.get_training_run(run_id).result()
    check(run.base_model == "nano" and run.lora_rank == 8, "get_training_run")
    check(run.last_checkpoint is not None, "the run knows its last checkpoint")
    runs = rest.list_training_runs(limit=100).result()
    check(run_id in [r.training_run_id for r in runs.training_runs], "list_training_runs")
    paths = [c.tinker_path for c in rest.list_checkpoints(run_id).result().checkpoints]
    check(saved in paths and sampler_path in paths, "list_checkpoints")
    mine = rest.list_user_checkpoints(limit=1000).result()
    check(len(mine.checkpoints) >= 2, "list_user_checkpoints")
    pages = [rest.list_user_checkpoints(limit=1, offset=i).result() for i in range(len(mine.checkpoints))]
    check([p.checkpoints[0].tinker_path for p in pages] == [c.tinker_path for c in mine.checkpoints] and
          all(p.cursor.total_count == len(mine.checkpoints) for p in pages), "checkpoints come in pages")
    info = rest.get_weights_info_by_tinker_path(saved).result()
    check(info.lora_rank == 8 and info.base_model == "nano", "get_weights_info")
    rest.set_checkpoint_ttl_from_tinker_path(saved, 3600).result()
    listed = {c.tinker_path: c for c in rest.list_checkpoints(run_id).result().checkpoints}
    check(listed[saved].expires_at is not None, "a ttl is set")
    rest.set_checkpoint_ttl_from_tinker_path(saved, None).result()
    rest.publish_checkpoint_from_tinker_path(sampler_path).result()
    listed = {c.tinker_path: c for c in rest.list_checkpoints(run_id).result().checkpoints}
    check(listed[sampler_path].public and listed[saved].expires_at is None, "publish, clear a ttl")
    rest.unpublish_checkpoint_from_tinker_path(sampler_path).result()
    if hasattr(rest, "get_checkpoint_archive_url_from_tinker_path"):  # gone from newer releases
        more = {sampler_path: set(), saved: {"optimizer.safetensors", "train_state.json"}}
        for path, extra in more.items():
            url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
            data = urllib.request.urlopen(url).read()
            names = set(tarfile.open(fileobj=io.BytesIO(data)).getnames())
            check(names == {"adapter_model.safetensors", "adapter_config.json", "checkpoint_complete"}
                  | extra, f"archive: {sorted(names)}")
    sessions = rest.list_sessions().result()
    check(len(sessions.sessions) >= 1, "list_sessions")
    session = rest.get_session(sessions.sessions[0]).result()
    check(session.training_run_ids is not None, "get_session")
    rest.delete_checkpoint_from_tinker_path(sampler_path).result()
    paths = [c.tinker_path for c in rest.list_checkpoints(run_id).result().checkpoints]
    check(sampler_path not in paths, "delete_checkpoint")


# Public methods that no test here calls, and why.
EXCUSED = {}


def main():
    service = tinker.ServiceClient(base_url=URL, api_key="tml-interop")
    capabilities = service.get_server_capabilities()
    check("nano" in [m.model_name for m in capabilities.supported_models], "get_server_capabilities")
    client = ready(service.create_lora_training_client(base_model="nano", rank=8, seed=42))
    info = client.get_info()
    check(info.model_data.model_name == "nano" and info.lora_rank == 8, "get_info")
    train_each_loss(client)
    custom_loss(service)
    loss_on_the_server(service)
    more_losses(service)
    failures(client)
    many_chunks(client)
    saved = save_and_load(service, client)
    sampler_path = sample(service, client)
    refusals(service)
    copied_sampler(service)
    asyncio.run(many_samples(service))
    asyncio.run(asynchronous(service))
    asyncio.run(awaitable(service))
    more_rest(service, saved)
    newer_calls(service, saved)
    everything_else(check, asyncio.run, URL, service, client, saved)
    rest(service, saved, sampler_path)
    missing, needless = surface.missing(EXCUSED)
    check(not missing, f"every public method is called; not called: {missing}")
    check(not needless, f"no method is excused that is called: {needless}")
    seen["sdk"] = tinker.__version__ if hasattr(tinker, "__version__") else ""
    json.dump(seen, open(OUT, "w"))
    print("everything passed")


main()
