#!/usr/bin/env python3
"""Holds libtinkc's tokenizer against Hugging Face tokenizers (and tiktoken, for rank files).

    tokenizer_diff.py --lib build/libtinkc.so [--mb 200] [--seed 1] [--text FILE_OR_FOLDER]... MODEL...

MODEL is a folder with tokenizer.json (or .zst) or a tiktoken file. The text is a mixture: what --text
names, sources and translations found on this machine, random words of the vocabulary, random
characters, emoji, decomposed accents, long runs, random bytes read as UTF-8. Each document is encoded
by both, without added marks but with special tokens in the text understood; ids must be equal, and our
decoding must give the text back (where nothing is normalised or stripped). Prints the first ten
differences; ends with 1 if there is one, 77 if the Python packages are missing.
"""
import argparse, base64, ctypes, glob, json, os, random, re, subprocess, sys, time, unicodedata

try:
    import tokenizers
    import tiktoken
except ImportError as missing:
    print(f"skipped: {missing} (pip install tokenizers tiktoken)")
    sys.exit(77)


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_int32)), ("len", ctypes.c_size_t),
                ("cap", ctypes.c_size_t), ("a", ctypes.c_void_p)]


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t),
                ("cap", ctypes.c_size_t), ("a", ctypes.c_void_p)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("status", ctypes.c_int32), ("category", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("request", ctypes.c_char * 64),
                ("message", ctypes.c_char * 400), ("rest", ctypes.c_char * 32)]


class Ours:
    def __init__(self, lib, path):
        self.lib = ctypes.CDLL(lib)
        self.lib.tinkc_tokenizer_open.restype = ctypes.c_void_p
        self.lib.tinkc_encode_span.restype = ctypes.c_bool
        self.lib.tinkc_decode_span.restype = ctypes.c_bool
        err = Error()
        options = (ctypes.c_uint64 * 9)()
        ctypes.cast(options, ctypes.POINTER(ctypes.c_uint8))[33] = 1  # no_compiled_cache
        self.tok = self.lib.tinkc_tokenizer_open(path.encode(), options, ctypes.byref(err))
        if not self.tok:
            raise SystemExit(f"{path}: {err.message.decode()}")
        self.out, self.text, self.err = Array(), Text(), Error()

    def encode(self, data):
        self.out.len = 0
        if not self.lib.tinkc_encode_span(ctypes.c_void_p(self.tok), data, ctypes.c_size_t(len(data)),
                                          None, ctypes.byref(self.out), None,
                                          ctypes.byref(self.err)):
            raise SystemExit(self.err.message.decode())
        return self.out.data[:self.out.len]

    def decode_last(self):
        self.text.len = 0
        self.lib.tinkc_decode_span(ctypes.c_void_p(self.tok), self.out.data,
                                   ctypes.c_size_t(self.out.len), None, ctypes.byref(self.text),
                                   ctypes.byref(self.err))
        return ctypes.string_at(self.text.data, self.text.len)


def read_bytes(path):
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], check=True, stdout=subprocess.PIPE).stdout
    return open(path, "rb").read()


KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


class Theirs:
    """encode(list of texts) -> list of ids, by whichever package knows the file."""

    def __init__(self, path):
        names = [path] if os.path.isfile(path) else [
            p for n in ("tokenizer.json", "tokenizer.json.zst", "tiktoken.model", "tiktoken.model.zst",
                        "*.tiktoken", "*.tiktoken.zst") for p in sorted(glob.glob(f"{path}/{n}"))]
        data = read_bytes(names[0])
        self.changes, self.ranks = False, None # changes: decoding need not give the text back
        if "json" in os.path.basename(names[0]):
            self.hf = tokenizers.Tokenizer.from_buffer(data)
            added = self.hf.get_added_tokens_decoder().values()
            self.changes = (b'"type":"NFC"' in re.sub(rb"\s", b"", data) or
                            any(t.lstrip or t.rstrip for t in added))
            self.special = [t.content for t in self.hf.get_added_tokens_decoder().values()]
            self.words = [self.hf.decode([i]) for i in range(min(self.hf.get_vocab_size(), 250000))]
        else:
            ranks = {base64.b64decode(a): int(b) for a, b in
                     (line.split() for line in data.splitlines() if line)}
            config, n = os.path.join(os.path.dirname(names[0]), "tokenizer_config.json"), len(ranks)
            kimi = os.path.exists(config) # other rank files come alone
            special = ({f"<|reserved_token_{i}|>": i for i in range(n, n + 256)} if kimi else
                       {"<|endoftext|>": 199999, "<|endofprompt|>": 200018})
            if kimi:
                for i, t in json.load(open(config))["added_tokens_decoder"].items():
                    special.pop(f"<|reserved_token_{i}|>", None)
                    special[t["content"]] = int(i)
            self.ranks = tiktoken.Encoding("x", pat_str=KIMI if kimi else O200K,
                                           mergeable_ranks=ranks, special_tokens=special)
            self.special = list(special)
            self.words = [t.decode("utf-8", "replace") for t in ranks]

    def encode(self, texts):
        if self.ranks:
            return [self.ranks.encode(t, allowed_special="all") for t in texts]
        return [e.ids for e in self.hf.encode_batch_fast(texts, add_special_tokens=False)]


def found_texts(paths, limit):
    """Real text on this machine, as strings; at most about `limit` bytes."""
    total = 0
    lists = []
    for p in paths:
        lists += sorted(glob.glob(p + "/**/*", recursive=True)) if os.path.isdir(p) else [p]
    if not paths:
        library = os.path.dirname(os.__file__)
        lists += sorted(glob.glob(library + "/*.py") + glob.glob(library + "/*/*.py"))
        lists += sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo"))[::7]
        random.Random(5).shuffle(lists)
    for path in lists:
        if total > limit or not os.path.isfile(path):
            continue
        data = open(path, "rb").read()
        if path.endswith(".mo"):
            parts = [c.decode("utf-8", "replace") for c in data.split(b"\0") if len(c) > 20]
            text = "\n".join(parts)
        else:
            text = data.decode("utf-8", "replace")
        total += len(text)
        if text:
            yield text


class Mixture:
    def __init__(self, rng, theirs, real):
        self.rng, self.theirs, self.real, self.at = rng, theirs, real, 0
        self.ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x800),
                       (0x900, 0xE00), (0xE00, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070),
                       (0x2190, 0x2600), (0x2600, 0x27C0), (0x3040, 0x3100), (0x4E00, 0x9FA6),
                       (0xAC00, 0xD7A4), (0x1F300, 0x1F700), (0x20000, 0x20400), (0, 0x20),
                       (0xE000, 0xE010), (0x1100, 0x1200), (0x11930, 0x11940)]

    def from_real(self):
        out, want = [], self.rng.randrange(200, 30000)
        text = self.real[self.at % len(self.real)] if self.real else self.from_words()
        if len(text) > want:
            start = self.rng.randrange(len(text) - want)
            text = text[start:start + want]
        self.at += 1
        return text

    def from_words(self):
        n, top = self.rng.randrange(50, 3000), len(self.theirs.words)
        pick = lambda: self.theirs.words[int(top ** self.rng.random()) - 1]
        return self.rng.choice(["", "", " "]).join(pick() for _ in range(n))

    def from_characters(self):
        out = []
        for _ in range(self.rng.randrange(10, 800)):
            lo, hi = self.rng.choice(self.ranges)
            out.append("".join(chr(self.rng.randrange(lo, hi)) for _ in range(self.rng.randrange(1, 12))))
            out.append(self.rng.choice(["", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "1234", "."]))
        return "".join(c for c in "".join(out) if not 0xD800 <= ord(c) < 0xE000)

    def from_bytes(self):
        return self.rng.randbytes(self.rng.randrange(100, 4000)).decode("utf-8", "replace")

    def from_runs(self):
        unit = self.rng.choice(["a", " ", "\n", "-", "ab", "\u4e2d", "=", "\t ", "\U0001F600", "1", "\u0301"])
        return unit * self.rng.randrange(1, 3000) + self.from_characters()[:50]

    def spoiled(self):
        text = list(self.from_real())
        for _ in range(len(text) // 50 + 1):
            i = self.rng.randrange(len(text))
            text[i] = self.rng.choice([text[i].upper(), " ", "\n", "'", text[i] * 2, "\u0301", "7", "",
                                       self.rng.choice(self.theirs.special or [""])])
        return "".join(text)

    def decomposed(self):
        return unicodedata.normalize(self.rng.choice(["NFD", "NFKD", "NFC"]), self.from_real())

    def next(self):
        kinds = [self.from_real] * 12 + [self.from_words] * 2 + [self.from_characters, self.from_bytes,
                 self.from_runs, self.spoiled, self.spoiled, self.decomposed]
        return self.rng.choice(kinds)()


def compare(model, args, real):
    theirs, ours = Theirs(model), Ours(args.lib, model)
    rng = random.Random(args.seed)
    mixture = Mixture(rng, theirs, real)
    size = docs = tokens = bad = wrong_back = 0
    start = time.time()
    while size < args.mb * 1e6:
        texts = [mixture.next() for _ in range(64)]
        for text, want in zip(texts, theirs.encode(texts)):
            data = text.encode()
            got = ours.encode(data)
            size += len(data)
            docs += 1
            tokens += len(got)
            if got != list(want):
                bad += 1
                if bad <= 10:
                    at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), -1)
                    print(f"{model}: differs at token {at}: {got[at:at+6]} ours, {want[at:at+6]} theirs; "
                          f"text {text[:60]!r}", flush=True)
                    if args.save:
                        open(f"{args.save}.{bad}", "wb").write(data)
            elif not theirs.changes and ours.decode_last() != data:
                wrong_back += 1
                if wrong_back <= 10:
                    print(f"{model}: decoding does not give the text back: {text[:60]!r}")
    print(f"{model}: {docs} documents, {size / 1e6:.1f} MB, {tokens} tokens, {bad} differences, "
          f"{wrong_back} not decoded back, {time.time() - start:.0f} s", flush=True)
    return bad + wrong_back


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lib", default="build/libtinkc.so")
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--save", help="write texts that differ to files with this name")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    real = list(found_texts(args.text, min(args.mb, 100) * 1e6))
    sys.exit(1 if sum(compare(m, args, real) for m in args.models) else 0)


if __name__ == "__main__":
    main()
