"""transformers, PEFT and the Tinker cookbook read what tinkc writes, and tinkc reads what PEFT writes.

Usage: transformers_peer.py BUILD MODEL. MODEL is the shipped model. Further models, one of each family and in several files each, are made by
transformers with random weights. The measure is always the log-probability of each token of one text: by tinkc, and by the other program.
"""
import json, os, pathlib, shutil, subprocess, sys, tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

try:
    from tinker_cookbook import weights as cookbook
except ImportError:
    cookbook = None

build, nano = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
work = pathlib.Path(tempfile.mkdtemp(prefix="tinkc-transformers-"))
environment = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKC_"))} | {"HOME": str(work)}
TOKENS = [937, 2093, 996, 329, 260, 272, 295, 13, 402, 328, 220, 16, 753, 220, 17, 30]
EXACT, ROUNDED = 2e-4, 6e-2  # nats: the same weights in float32; weights that were rounded to bfloat16 after merging
failures = checks = 0


def tinkc(*args, text=None):
    r = subprocess.run([build / "tinkc", *map(str, args)], input=text, env=environment, capture_output=True, text=True, cwd=work)
    if r.returncode:
        raise SystemExit(f"tinkc {' '.join(map(str, args))}: {r.returncode}\n{r.stderr}")
    return r.stdout


def ours(*args):
    rows = json.loads(tinkc("logprobs", "--tokens", "--local", "--json", *args, text=json.dumps(TOKENS)))
    rows = rows if isinstance(rows, list) else rows["tokens"]
    return torch.tensor([r["logprob"] for r in rows[1:]], dtype=torch.float64)


def theirs(model):
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        logits = model.eval()(ids).logits[0].double()
    return torch.log_softmax(logits[:-1], -1).gather(-1, ids[0, 1:, None])[:, 0]


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)


def check(what, a, b, limit):
    global failures, checks
    checks += 1
    apart = (a - b).abs().max().item()
    bad = not apart <= limit
    failures += bad
    print(f"{'FAILED' if bad else 'ok':6} {what}: {apart:.1e} nats", flush=True)


def differs(what, a, b):
    """The adapter changes something: agreement would mean nothing otherwise."""
    global failures, checks
    checks += 1
    apart = (a - b).abs().max().item()
    failures += not apart > 0.1
    print(f"{'ok' if apart > 0.1 else 'FAILED':6} {what}: {apart:.1e} nats apart", flush=True)


def make_models():
    size = dict(vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=256, bos_token_id=None, eos_token_id=4095, pad_token_id=None)
    for name, kind, tied in (("llama", transformers.LlamaConfig, False), ("qwen2", transformers.Qwen2Config, True), ("qwen3", transformers.Qwen3Config, True)):
        config = kind(**size, **({"head_dim": 32} if name == "qwen3" else {}), tie_word_embeddings=tied)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for p in model.parameters():
            torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.1)
        folder = work / name
        model.save_pretrained(folder, max_shard_size="300KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 1, list(folder.iterdir())
        for f in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(nano / f, folder)
        yield name, folder, tied


def peft_to_tinkc(name, folder, tied):
    """An adapter that PEFT saved is what training starts from, and what merging takes."""
    targets = ["q_proj", "v_proj", "down_proj"] + ([] if tied else ["lm_head"])
    model = get_peft_model(load(folder), LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"))
    for n, p in model.named_parameters():
        if "lora_" in n:
            torch.nn.init.normal_(p, std=0.03 if name == "nano" else 0.1)
    adapter = work / f"{name}-by-peft"
    model.save_pretrained(adapter)
    expected = theirs(model)
    differs(f"{name}: PEFT's adapter changes answers", expected, ours("-m", folder))
    check(f"{name}: tinkc with an adapter that PEFT saved", ours("-m", folder, "--from-adapter", adapter), expected, EXACT)
    again = work / f"{name}-by-peft-merged"
    tinkc("export", adapter, "--base", folder, "--to", "merged", "-o", again)
    check(f"{name}: transformers with it merged by tinkc", theirs(load(again)), expected, EXACT if name != "nano" else ROUNDED)
    return adapter


def train(name, folder, *more):
    rows = work / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"{i} + 1"}, {"role": "assistant", "content": f"it is {i + 1}"}]}) + "\n"
                            for i in range(8)))
    run = work / f"{name}-run{len(more)}"
    tinkc("train", "sft", rows, "-m", folder, "--local", "-q", "--renderer", "role_colon", "--batch-size", 4, "--max-steps", 2, "--lora-rank", 4,
          "--lr", "0.01", "--lr-schedule", "constant", "--seed", 1, "--log-dir", run, *more)
    return run


def with_input_as_output(folder):
    """A tied model with one matrix for both ends, the merged output layer. So the cookbook merges the output layer's adapter of a tied model."""
    model = load(folder)
    model.get_input_embeddings().weight.data = model.get_output_embeddings().weight.data.clone()
    return theirs(model)


def tinkc_to_peers(name, folder, run, exact, tied_unembed):
    expected, base = ours("-m", run), ours("-m", folder)
    differs(f"{name}: training changes answers", expected, base)
    out = {form: work / f"{run.name}-{form}" for form in ("peft", "merged", "hosted")}
    for form, to in out.items():
        tinkc("checkpoint", "export", run, "--to", form, "-o", to)
    check(f"{name}: PEFT with tinkc's adapter", theirs(PeftModel.from_pretrained(load(folder), str(out["peft"]))), expected, EXACT)
    merged = sorted(p.name for p in out["merged"].glob("model-*.safetensors"))
    assert merged == sorted(p.name for p in folder.glob("model-*.safetensors")), merged
    check(f"{name}: transformers with tinkc's merged model of {len(merged)} files", theirs(load(out["merged"])), expected, EXACT if exact else ROUNDED)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(out["merged"]))
    assert tokenizer.encode("the cat", add_special_tokens=False) == TOKENS[:2], tokenizer.encode("the cat")
    archive = work / f"{run.name}-downloaded"
    path = json.loads((run / "checkpoints.jsonl").read_text().splitlines()[-1])["sampler_path"]
    tinkc("checkpoint", "download", path, "--local", "-o", archive)
    downloaded = next(archive.rglob("adapter_config.json")).parent
    built = with_input_as_output(out["merged"]) if tied_unembed else expected
    for form, adapter in (("downloaded", downloaded), ("hosted", out["hosted"])):
        for strategy in ("shard", "full") if cookbook else ():
            to = work / f"{run.name}-built-{form}-{strategy}"
            cookbook.build_hf_model(base_model=str(folder), adapter_path=str(adapter), output_path=str(to), merge_strategy=strategy,
                                    **({} if strategy == "shard" else {"dtype": "float32"}))
            check(f"{name}: the cookbook's build_hf_model, {form} adapter, {strategy}", theirs(load(to)), built, EXACT if exact or (strategy == "full" and not tied_unembed) else ROUNDED)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}" + ("" if cookbook else "; tinker-cookbook is not installed: build_hf_model is left out"))
    for name, folder, tied in (("nano", nano, True), *make_models()):
        check(f"{name}: transformers and tinkc on the model itself", theirs(load(folder)), ours("-m", folder), EXACT)
        adapter = peft_to_tinkc(name, folder, tied)
        tinkc_to_peers(name, folder, train(name, folder), name != "nano", tied)
        tinkc_to_peers(f"{name} from PEFT", folder, train(name, folder, "--from-adapter", adapter), name != "nano", False)


try:
    main()
finally:
    shutil.rmtree(work, ignore_errors=True)
print(f"{checks - failures} of {checks} agree")
raise SystemExit(1 if failures or not checks else 0)
