#!/usr/bin/env python3
"""What a user of the Python SDK gets: tokens/s of training and sampling through HTTP, `tinkc serve` at its defaults.

usage: sdk_speed.py [--build DIR] [--device cuda|cpu] [--shapes 0.6B,4B,8B] [--samples 1,64,256] [--tokens 256]

Models have random weights (tools/make-random-model). Beside each figure stands the kernel's of the same run, where cuda_check has
one, and their ratio. Needs the Python package tinker; without a network the wheels of its dependencies are brought along:
    pip download --no-deps --only-binary=:all: --python-version 312 --platform manylinux_2_28_x86_64 -d WHEELS tinker anyio click
        distro httpx httpcore h11 h2 hpack hyperframe certifi idna orjson protobuf pydantic pydantic-core annotated-types
        typing-inspection pyqwest rich markdown-it-py mdurl pygments sniffio typing-extensions zstandard
    pip install --no-index --no-deps --target SITE WHEELS/*.whl; PYTHONPATH=SITE bench/sdk_speed.py
(numpy is expected there; transformers is not used.) tiny runs on a CPU in seconds.
"""
import argparse, contextlib, json, os, pathlib, re, subprocess, sys, tempfile, threading, time

root = pathlib.Path(__file__).resolve().parent.parent
shapes = {"0.6B": "qwen3-0.6b", "4B": "qwen3-4b", "8B": "qwen3-8b", "tiny": "tiny"}
options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--build", default=str(root / "build"))
options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
options.add_argument("--shapes", default="0.6B,4B,8B")
options.add_argument("--samples", default="1,64,256")
options.add_argument("--tokens", type=int, default=256, help="of each sample")
options.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
options.add_argument("--batches", default="8x2048,4x4096", help="data x tokens of training")
options.add_argument("--steps", type=int, default=12, help="of training that are measured; the first one's way there and the last one's back count")
options.add_argument("--no-kernel", action="store_true", help="do not run cuda_check beside it")
options.add_argument("--folder", help="where models are made and kept; default: a folder that is removed")
options.add_argument("--json", help="writes the rows there")
args = options.parse_args()
build = pathlib.Path(args.build).resolve()
os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-bench", HF_HUB_OFFLINE="1")
os.environ.setdefault("TINKC_CUDA_MODULE", str(build / "libtinkc-engine-cuda.so"))
import tinker  # noqa: E402
from tinker import types  # noqa: E402

rows = []


def kernel_figures(shape):
    """{("train", "8x2048"): tokens/s, (samples, with an adapter): tokens/s} of cuda_check, alone on the card."""
    figures, check = {}, build / "tests/cuda_check"
    if args.device == "cpu" or args.no_kernel or shape == "tiny" or not check.exists():
        return figures
    out = ""
    for mode in ["decode", shape], ["train", shape, "16384", "head"]:  # the SDK trains the head's adapter, too
        with contextlib.suppress(subprocess.TimeoutExpired):
            out += subprocess.run([check, *mode], capture_output=True, text=True, timeout=120).stdout
    for batch, lora, rate in re.findall(r"batch (\d+) context 1024( rank 32 adapters 1)?: (\d+) tokens/s", out):
        figures[int(batch), bool(lora)] = float(rate)
    for rate in re.findall(r"TRAIN \S+, 16384 tokens: (\d+) tokens/s", out):
        figures["train", "8x2048"] = float(rate)
    return figures


@contextlib.contextmanager
def serving(model, store):
    """tinkc serve at its defaults: the address, and what it said first."""
    process = subprocess.Popen([build / "tinkc", "serve", f"bench={model}", "--device", args.device, "--port", "0", "--store", store],
                               stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": store})
    said, url = [], ""
    try:
        for line in process.stderr:
            said.append(line.rstrip())
            if "TINKER_BASE_URL=" in line:
                url = line.split("=", 1)[1].strip()
                break
        if not url:
            raise SystemExit("sdk_speed: tinkc serve did not start: " + " / ".join(said[-3:]))
        threading.Thread(target=lambda: said.extend(process.stderr), daemon=True).start()
        yield url, said
    finally:
        process.terminate()
        process.wait(60)


def show(shape, what, figure, kernel):
    ratio = f"{100 * figure / kernel:.0f} %" if kernel and figure else "-"
    rows.append({"shape": shape, "what": what, "tokens_per_s": figure, "kernel": kernel})
    print(f"| {shape}, {what} | {f'{kernel:,.0f}' if kernel else '-'} | {f'{figure:,.0f}' if figure else 'failed'} | {ratio} |", flush=True)


def ready(client):
    """The client itself: newer SDKs give it as a future."""
    return client.result() if hasattr(client, "result") else client


def numbers(n, seed, vocab):
    return [(seed * 7919 + i * 104729 + i * i) % (vocab - 1) + 1 for i in range(n)]


def datum(n, seed, vocab):
    tokens = numbers(n + 1, seed, vocab)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[n]),
                                       "weights": types.TensorData(data=[1.0] * n, dtype="float32", shape=[n])})


def train(client, count, length, vocab, steps):
    """tokens/s of forward_backward and optim_step, both sent before either is waited for, as the SDK's guide does it."""
    data = [datum(length, i, vocab) for i in range(count)]

    def step():
        futures = client.forward_backward(data, "cross_entropy"), client.optim_step(types.AdamParams(learning_rate=1e-5))
        return lambda: [f.result() for f in futures]

    step()()  # the first one chooses algorithms and takes memory
    begin, before = time.monotonic(), None
    for _ in range(steps):
        now = step()
        if before:
            before()
        before = now
    before()
    return count * length * steps / (time.monotonic() - begin)


def sample(client, n, vocab):
    """tokens/s of n samples of one prompt, its prefill included."""
    limit = types.SamplingParams(max_tokens=args.tokens, temperature=1.0)

    def once(seed, tokens):
        prompt = types.ModelInput.from_ints(numbers(args.prompt, seed, vocab))
        result = client.sample(prompt=prompt, num_samples=n, sampling_params=tokens).result()
        return sum(len(s.tokens) for s in result.sequences)

    once(n + 1000, types.SamplingParams(max_tokens=8, temperature=1.0))
    begin = time.monotonic()
    return once(n, limit) / (time.monotonic() - begin)


def guarded(f, *arguments):
    try:
        return f(*arguments)
    except Exception as failed:  # a refused row is a result, too
        print(f"  {f.__name__} {arguments[1:]}: {type(failed).__name__}: {str(failed)[:300]}", flush=True)
        return 0


def measure(shape, folder):
    model = pathlib.Path(folder, shape)
    if not (model / "config.json").exists():
        subprocess.run([sys.executable, root / "tools/make-random-model", shapes[shape], model], check=True)
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    kernel = kernel_figures(shape)
    with tempfile.TemporaryDirectory() as store, serving(model, store) as (url, said):
        service = tinker.ServiceClient(base_url=url)
        trainer = ready(service.create_lora_training_client(base_model="bench", rank=32))
        for batch in filter(None, args.batches.split(",")):
            count, length = map(int, batch.split("x"))
            show(shape, f"train {count} x {length}", guarded(train, trainer, count, length, vocab, args.steps), kernel.get(("train", batch)))
        tuned = ready(trainer.save_weights_and_get_sampling_client(name="speed"))
        plain = ready(service.create_sampling_client(base_model="bench"))
        for n in map(int, args.samples.split(",")):
            for client, lora in (tuned, True), (plain, False):
                show(shape, f"{n} samples, {'with' if lora else 'without'} adapter", guarded(sample, client, n, vocab), kernel.get((n, lora)))


print(f"tinker {tinker.__version__}, {args.device}; samples of {args.tokens} tokens after {args.prompt}")
print("| tokens/s | kernel | through the SDK, defaults | ratio |\n|---|---|---|---|")
with tempfile.TemporaryDirectory() as made:
    for shape in args.shapes.split(","):
        measure(shape, args.folder or made)
if args.json:
    pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
sys.stdout.flush()
os._exit(any(not r["tokens_per_s"] for r in rows))  # the SDK's threads do not end by themselves
