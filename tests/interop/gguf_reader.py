"""The gguf package (llama.cpp's own) reads what `tinkc export --to gguf` writes, and quantizes the same numbers to
the same bytes.

    gguf_reader.py BUILD MODEL
"""
import json, pathlib, struct, subprocess, sys, tempfile
import gguf, numpy as np

build, model = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
passed, failed = 0, []


def check(name, condition, detail=""):
    global passed
    if condition:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED {name}: {detail}")


def base_tensors():
    found = {}
    for path in sorted(model.glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack_from("<Q", data)[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                raw = np.frombuffer(data[8 + n + a:8 + n + b], np.uint16).astype(np.uint32) << 16
                found[name] = raw.view(np.float32).reshape(t["shape"])
    return found


names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 8)
base = {names.get_name(n, (".weight",)): v for n, v in base_tensors().items()}
kinds = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
with tempfile.TemporaryDirectory() as work:
    for kind, number in kinds.items():
        path = f"{work}/{kind}.gguf"
        r = subprocess.run([build / "tinkc", "export", model, "--to", "gguf", "--type", kind, "-o", path],
                           capture_output=True, text=True, env={"HOME": work, "PATH": "/usr/bin:/bin"})
        check(f"{kind}: export", r.returncode == 0, r.stderr)
        reader = gguf.GGUFReader(path)
        tensors = {t.name: t for t in reader.tensors}
        check(f"{kind}: the names are llama.cpp's", set(tensors) == set(base), set(tensors) ^ set(base))
        for name, values in base.items():
            t = tensors[name]
            want = number if values.ndim == 2 else gguf.GGMLQuantizationType.F32
            same = t.tensor_type == want and t.data.tobytes() == gguf.quants.quantize(values, want).tobytes()
            check(f"{kind}: {name} has the same bytes", same, t.tensor_type)
        check(f"{kind}: keys", reader.get_field(gguf.Keys.General.ARCHITECTURE).contents() == "qwen3"
              and len(reader.get_field(gguf.Keys.Tokenizer.LIST).contents()) == base["token_embd.weight"].shape[0])
print(f"gguf: {passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
