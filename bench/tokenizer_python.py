#!/usr/bin/env python3
"""tokenizer_python.py DIR NAME: processor time from Python of tinkc, tokenizers and tiktoken for the same documents, as MB/s;
called by bench/tokenizer_python.sh. Results are compared before they are measured."""
import glob, json, os, pydoc_data.topics, sys, time
import tiktoken, tinkc, tokenizers

folder, name = sys.argv[1:]
lib = os.path.dirname(os.__file__)
texts = {"English prose": "\n".join(pydoc_data.topics.topics.values()),
         "Python code": "".join(open(p, errors="replace").read() for p in sorted(glob.glob(lib + "/*.py")))[:1500000]}
ours = tinkc.Tokenizer(folder)
theirs = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")


def tiktoken_of(path):
    table, n = {}, 0
    for b in range(256):
        plain = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        table[chr(b) if plain else chr(256 + n)] = b
        n += not plain
    steps = json.load(open(path))["pre_tokenizer"].get("pretokenizers", [])
    if len(steps) != 2 or "pattern" not in steps[0]:
        return None
    ranks = {bytes(table[c] for c in token): i for token, i in theirs.get_vocab(with_added_tokens=False).items() if all(c in table for c in token)}
    return tiktoken.Encoding("x", pat_str=steps[0]["pattern"]["Regex"], mergeable_ranks=ranks, special_tokens={})


def speed(size, function):
    seconds = []
    for _ in range(3):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return size / min(seconds)


tik = tiktoken_of(folder + "/tokenizer.json")
print(f"{name}, documents of 8 KB, one thread, lists of ids unless it says arrays:\n")
print("| | tinkc, MB/s | tokenizers | tiktoken | ratio |\n|---|---|---|---|---|")
for kind, text in texts.items():
    docs = [text[i:i + 8192] for i in range(0, len(text), 8192)]
    mb = len(text.encode()) / 1e6
    ids = [e.ids for e in theirs.encode_batch_fast(docs, add_special_tokens=False)]
    assert ours.encode_batch(docs) == ids, "tinkc and tokenizers differ"
    rows = (("encode", lambda: [ours.encode(d) for d in docs],
             lambda: [theirs.encode(d, add_special_tokens=False).ids for d in docs], lambda: [tik.encode_ordinary(d) for d in docs]),
            ("encode, arrays", lambda: [ours.encode_array(d) for d in docs], None,
             (lambda: [tik.encode_to_numpy(d, disallowed_special=()) for d in docs]) if hasattr(tik, "encode_to_numpy") else None),
            ("decode", lambda: [ours.decode(i) for i in ids], lambda: [theirs.decode(i, skip_special_tokens=False) for i in ids],
             lambda: [tik.decode(i) for i in ids]))
    for what, mine, hf, tt in rows:
        a, b, c = speed(mb, mine), speed(mb, hf) if hf else None, speed(mb, tt) if tt and tik else None
        ratio = ", ".join(f"{a / x:.1f} x" for x in (b, c) if x)
        print(f"| {what}, {kind} | {a:.1f} | {f'{b:.1f}' if b else '-'} | {f'{c:.1f}' if c else '-'} | {ratio} |")
