"""GGUF files of others, read by tinkc: the numbers of llama.cpp's gguf package, bit for bit.

    gguf_models.py BUILD MODEL.gguf

With TRANSFORMERS_PYTHON (torch, transformers) the log-probs are compared with transformers' too.
"""
import json, os, pathlib, struct, subprocess, sys, tempfile
import gguf, numpy as np

build, model = pathlib.Path(sys.argv[1]), sys.argv[2]
TEXT = "The capital of France is Paris. In 1998 it had 2125246 inhabitants, and the Seine flows through it."
failed = []


def check(name, condition, detail=""):
    print(("ok " if condition else "FAILED ") + name, "" if condition else detail)
    if not condition:
        failed.append(name)


def to_bf16(x):
    """To nearest, ties to even; one NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def wild(rng, n, size):
    """Random blocks; every scale that a byte pattern can be, NaN, infinities and subnormals among them."""
    blocks = rng.integers(0, 256, (n, size), np.uint8)
    for i, half in enumerate((0x7C00, 0xFC00, 0x7E01, 0x0001, 0x83FF, 0x0000, 0x8000, 0x7BFF)):
        blocks[i, :2] = blocks[i, -2:] = half & 255, half >> 8
    return blocks


def compare_formats():
    rng = np.random.default_rng(5)
    for name in "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K IQ4_NL MXFP4".split():
        kind = gguf.GGMLQuantizationType[name]
        blocks = wild(rng, 4096, gguf.GGML_QUANT_SIZES[kind][1])
        with np.errstate(all="ignore"):
            want = to_bf16(gguf.quants.dequantize(blocks, kind)).tobytes()
        for kernels in range(4):
            got = subprocess.run([build / "tests/test_engine.formats", "unpack", name, str(kernels)],
                                 input=blocks.tobytes(), capture_output=True).stdout
            check(f"{name}, set {kernels}: the bits of the gguf package", got == want or not got)
            check(f"{name}, set 0 is there", got or kernels)


def compare_packers():
    """Blocks that we pack: the gguf package's own, where it packs; else it reads them as we do, and they lose little."""
    x = np.random.default_rng(6).normal(0, 0.05, (512, 256)).astype(np.float32)
    for name, most in {"Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "Q4_K": 0.08, "Q5_K": 0.04, "Q6_K": 0.02, "IQ4_NL": 0.08}.items():
        kind = gguf.GGMLQuantizationType[name]
        got = subprocess.run([build / "tests/test_engine.formats", "pack", name], input=x.tobytes(), capture_output=True).stdout
        if not most:
            check(f"{name}: packed as the gguf package packs it", got == gguf.quants.quantize(x, kind).tobytes())
            continue
        blocks = np.frombuffer(got, np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        loss = np.sqrt(np.mean((gguf.quants.dequantize(blocks, kind).reshape(x.shape) - x) ** 2) / np.mean(x ** 2))
        check(f"{name}: packed with {loss:.3f} of the numbers' size lost", loss < most)


def unpaired(x, heads):
    """Rows of q and k as in the folder: the converter has put the halves of a rotation side by side."""
    return x.reshape(heads, -1, 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + x.size * 2]}
        at += x.size * 2
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(to_bf16(x).tobytes())


def value(reader, key):
    return reader.get_field(key).contents()


def write_tokenizer(reader, folder):
    tokens, types = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": t, "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
             for i, t in enumerate(tokens) if types[i] == 3]
    digits = {"type": "Digits", "individual_digits": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": value(reader, "tokenizer.ggml.merges")}}))


def write_folder(reader, folder):
    """The bf16 model that the file stands for."""
    heads, kv_heads = value(reader, "llama.attention.head_count"), value(reader, "llama.attention.head_count_kv")
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    tensors = {}
    for t in reader.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type)
        parts = t.name.split(".")
        if parts[0] != "blk":
            tensors[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + ".weight"] = x
            continue
        x = unpaired(x, heads) if parts[2] == "attn_q" else unpaired(x, kv_heads) if parts[2] == "attn_k" else x
        tensors[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = x
    # Norms are numbers of their own, not part of the format: exact in bf16 or not, both sides take them as stored.
    exact = all((to_bf16(x).astype(np.uint32) << 16).view(np.float32).tobytes() == np.float32(x).tobytes()
                for n, x in tensors.items() if x.ndim == 1)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True,
        "hidden_size": value(reader, "llama.embedding_length"), "intermediate_size": value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": value(reader, "llama.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": len(value(reader, "tokenizer.ggml.tokens")), "max_position_embeddings": value(reader, "llama.context_length"),
        "rms_norm_eps": float(value(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(value(reader, "llama.rope.freq_base")), "torch_dtype": "bfloat16", "eos_token_id": 2}))
    write_tokenizer(reader, folder)
    return exact


def tinkc(work, *args):
    r = subprocess.run([build / "tinkc", *args, "--local", "--json"], capture_output=True, text=True,
                       env={"HOME": work, "PATH": "/usr/bin:/bin"})
    check("tinkc " + " ".join(args[:1]) + " " + pathlib.Path(args[2]).name, r.returncode == 0, r.stderr)
    return json.loads(r.stdout) if r.returncode == 0 else None


def compare_packing(folder, work):
    """`tinkc quantize` gives the bytes of the gguf package."""
    source = next(t for t in gguf.GGUFReader(model).tensors if t.name == "blk.3.ffn_up.weight")
    numbers = (to_bf16(gguf.quants.dequantize(source.data, source.tensor_type)).astype(np.uint32) << 16).view(np.float32)
    for kind in ("Q4_0", "Q8_0"):
        target = pathlib.Path(work) / f"{kind}.gguf"
        r = subprocess.run([build / "tinkc", "quantize", folder, target, "--format", kind.lower()], capture_output=True, text=True,
                           env={"HOME": work, "PATH": "/usr/bin:/bin"})
        check(f"tinkc quantize to {kind}", r.returncode == 0, r.stderr)
        made = next(t for t in gguf.GGUFReader(target).tensors if t.name == source.name)
        want = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind])
        check(f"{kind} is packed as the gguf package packs it", np.array_equal(np.asarray(made.data).ravel(), want.ravel()))


def write_adapter(folder, shapes, rng):
    """An adapter in PEFT's form; returns scale * B A of each matrix."""
    folder.mkdir()
    tensors, deltas = {}, {}
    for path, (rows, cols) in shapes.items():
        a, b = (to_bf16(rng.normal(0, 0.05, s)) for s in ((4, cols), (rows, 4)))
        tensors |= {f"base_model.model.{path}.lora_A.weight": a, f"base_model.model.{path}.lora_B.weight": b}
        wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (b, a)]
        deltas[path] = 2 * wide[0] @ wide[1]
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}))
    return deltas


def compare_merged(work):
    """`tinkc export --to gguf` of a base in GGUF: its keys, its types; only what has an adapter is packed again."""
    base = gguf.GGUFReader(model)
    hidden, inner = value(base, "llama.embedding_length"), value(base, "llama.feed_forward_length")
    paths = {"model.layers.1.self_attn.q_proj": (hidden, hidden), "model.layers.2.mlp.down_proj": (hidden, inner)}
    deltas = write_adapter(pathlib.Path(work) / "adapter", paths, np.random.default_rng(8))
    target = pathlib.Path(work) / "merged.gguf"
    r = subprocess.run([build / "tinkc", "export", f"{work}/adapter", "--base", model, "--to", "gguf", "-o", target],
                       capture_output=True, text=True, env={"HOME": work, "PATH": "/usr/bin:/bin"})
    check("tinkc export into a GGUF base", r.returncode == 0, r.stderr)
    if r.returncode:
        return
    merged = gguf.GGUFReader(target)
    ours = [k for k in merged.fields if not k.startswith("GGUF.")]
    check("the keys are those of the base", ours == [k for k in base.fields if not k.startswith("GGUF.")] and
          all(value(base, k) == value(merged, k) for k in ours))
    check("names and types are those of the base", [(t.name, t.tensor_type) for t in base.tensors] == [(t.name, t.tensor_type) for t in merged.tensors])
    adapted = {"blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj", "blk.2.ffn_down.weight": "model.layers.2.mlp.down_proj"}
    for old, new in zip(base.tensors, merged.tensors):
        if old.name not in adapted:
            if np.asarray(old.data).tobytes() != np.asarray(new.data).tobytes():
                check(f"{old.name} is copied", False)
            continue
        heads = value(base, "llama.attention.head_count")
        delta = deltas[adapted[old.name]]
        if "attn_q" in old.name: # the halves of a rotation side by side
            delta = delta.reshape(heads, 2, -1, delta.shape[-1]).swapaxes(1, 2).reshape(delta.shape)
        want, got = gguf.quants.dequantize(old.data, old.tensor_type) + delta, gguf.quants.dequantize(new.data, new.tensor_type)
        loss = np.sqrt(np.mean((got - want) ** 2) / np.mean(want ** 2))
        check(f"{old.name} in {old.tensor_type.name} is base and adapter, {loss:.3f} lost", loss < 0.1)


PEER = """
import json, sys, torch, transformers
ids = json.loads(sys.argv[2])
m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    p = torch.log_softmax(m(torch.tensor([ids])).logits[0], -1)
print(json.dumps([p[i, ids[i + 1]].item() for i in range(len(ids) - 1)]))
"""


def compare_model():
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "twin"
        folder.mkdir()
        check("norms are bf16 numbers", write_folder(gguf.GGUFReader(model), folder))
        ours = tinkc(work, "logprobs", "-m", model, "--text", TEXT)
        twin = tinkc(work, "logprobs", "-m", str(folder), "--text", TEXT)
        check("packed and unpacked give the same log-probs, bit for bit", ours and ours == twin, f"{ours}\n{twin}")
        said = [tinkc(work, "sample", "-m", m, "--temperature", "0", "--max-tokens", "24", "--raw", TEXT) for m in (model, str(folder))]
        check("and the same samples", said[0] and said[0]["sequences"] == said[1]["sequences"], said)
        compare_packing(folder, work)
        compare_merged(work)
        peer = os.environ.get("TRANSFORMERS_PYTHON")
        if not peer or not ours:
            print("transformers: not compared (TRANSFORMERS_PYTHON is not set)")
            return
        rows = ours["tokens"] if isinstance(ours, dict) else ours
        ids = [t.get("id", t.get("token_id", t.get("token"))) for t in rows]
        p = subprocess.run([peer, "-W", "ignore", "-c", PEER, str(folder), json.dumps(ids)], capture_output=True, text=True)
        theirs = json.loads(p.stdout) if p.returncode == 0 else []
        worst = max((abs(a["logprob"] - b) for a, b in zip(rows[1:], theirs)), default=9)
        check(f"transformers' log-probs (largest difference {worst:.1e})", worst < 1e-3, p.stderr[-500:])


compare_formats()
compare_packers()
compare_model()
print(f"gguf in: {len(failed)} failed")
sys.exit(bool(failed))
