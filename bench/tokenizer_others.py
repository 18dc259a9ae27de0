#!/usr/bin/env python3
"""tokenizer_others.py DIR OURS NAME TEXT...: what Hugging Face tokenizers and tiktoken need for the same texts,
beside our figures (a file that bench/tokenizer wrote), with ratios. Called by bench/tokenizer.sh."""
import os, sys, time
import tiktoken, tokenizers

folder, ours_path, name, *texts = sys.argv[1:]
ours = {}
for line in open(ours_path):
    what, file, value, unit = line.split()
    ours[what, file] = float(value)
path = folder + "/tokenizer.json"


def best(f, times=3):
    seconds = []
    for _ in range(times):
        start = time.thread_time()
        result = f()
        seconds.append(time.thread_time() - start)
    return min(seconds), result


print(f"== {name}")
hf_load, hf = best(lambda: tokenizers.Tokenizer.from_file(path), 2)
print(f"load: ours {ours['load_source', '-']:.1f} ms, compiled {ours['load_compiled', '-']:.2f} ms; "
      f"tokenizers {hf_load * 1e3:.0f} ms; {hf_load * 1e3 / ours['load_source', '-']:.1f} x, "
      f"{hf_load * 1e3 / ours['load_compiled', '-']:.0f} x")


def bytes_of(token):
    table, n = {}, 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
            table[chr(b)] = b
        else:
            table[chr(256 + n)] = b
            n += 1
    return table


table = bytes_of("")
ranks = {}
for token, i in hf.get_vocab(with_added_tokens=False).items():
    if all(c in table for c in token):
        ranks[bytes(table[c] for c in token)] = i
import json
steps = json.load(open(path))["pre_tokenizer"]
steps = steps.get("pretokenizers", [])
pattern = steps[0]["pattern"]["Regex"] if steps and "pattern" in steps[0] else None
tik = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}) if pattern and len(steps) == 2 else None

for file in texts:
    text = open(file, encoding="utf-8", errors="replace").read()
    base, size = os.path.basename(file), len(text.encode()) / 1e6
    # Their speed does not depend on length, so three megabytes are enough; in documents of 8 KB as they like it.
    short = text[:int(len(text) * min(1, 3 / size))]
    docs = [short[i:i + 8192] for i in range(0, len(short), 8192)]
    mb = len(short.encode()) / 1e6
    s, enc = best(lambda: hf.encode_batch_fast(docs, add_special_tokens=False))
    hf_encode = mb / s
    ids = [i for e in enc for i in e.ids]
    s, _ = best(lambda: hf.decode(ids))
    hf_decode = mb / s
    tik_encode = 0
    if tik:
        s, _ = best(lambda: [tik.encode_ordinary(d) for d in docs])
        tik_encode = mb / s
    encode, cold, decode = (ours[k, base] for k in ("encode", "encode_cold", "decode"))
    threads = [(k, v) for (k, f), v in ours.items() if f == base and "threads" in k]
    print(f"{base} ({size:.1f} MB): encode {encode:.0f} MB/s warm, {cold:.0f} cold"
          + "".join(f", {v:.0f} on {k.split('_')[1]} threads" for k, v in threads)
          + f"; tokenizers {hf_encode:.1f} ({encode / hf_encode:.0f} x, cold {cold / hf_encode:.0f} x)"
          + (f"; tiktoken {tik_encode:.1f} ({encode / tik_encode:.0f} x)" if tik_encode else "")
          + f"; decode {decode:.0f} MB/s, tokenizers {hf_decode:.0f} ({decode / hf_decode:.0f} x)")
