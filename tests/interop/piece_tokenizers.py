"""Vocabularies of pieces: libtinkc beside sentencepiece (GGUF files with scores) and Hugging Face tokenizers (tokenizer.json with
byte_fallback).

    piece_tokenizers.py LIBTINKC MODELS WORK

MODELS: the published ones, *.model.v*, that mistral-common has inside; others are small ones that sentencepiece trains here on odd text. Ids must be equal, and our
decoding must be theirs.
"""
import glob, io, json, os, random, sys
import gguf, sentencepiece, tokenizers
from sentencepiece import sentencepiece_model_pb2 as form
from tokenizer_diff import Ours, found_texts

lib, published, work = sys.argv[1:]
rng, failed = random.Random(11), 0
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def check(name, text, got, want):
    global failed
    if got != want:
        failed += 1
        at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
        if failed <= 12:
            print(f"FAILED {name}: {got[max(0, at - 2):at + 6]!r} ours, {want[max(0, at - 2):at + 6]!r} theirs; text {text[:80]!r}")


def trained(name, text, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=out, model_type="bpe", byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
        normalization_rule_name="identity", remove_extra_whitespaces=False, **options)
    return name, out.getvalue()


def models():
    for path in sorted(glob.glob(f"{published}/*.model.v[137]")):
        yield os.path.basename(path), open(path, "rb").read()
    letters = ["".join(rng.choice("aab  b\u2581\u00e9\u4e2dc") for _ in range(60)) for _ in range(400)]
    yield trained("runs", letters, vocab_size=420, split_by_whitespace=False, character_coverage=1.0)
    yield trained("no prefix", letters, vocab_size=400, add_dummy_prefix=False, character_coverage=0.98)
    # Equal scores everywhere: only the order from the left decides.
    model = form.ModelProto.FromString(trained("ties", letters, vocab_size=420, character_coverage=1.0)[1])
    for piece in model.pieces:
        piece.score = -float(rng.randrange(3))
    yield "ties", model.SerializeToString()


def save_gguf(model, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([p.piece for p in model.pieces])
    writer.add_token_scores([p.score for p in model.pieces])
    writer.add_token_types([p.type for p in model.pieces])
    writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def hugging_face(model, spaces, first=True, split=False, normalized=False):
    """tokenizer.json as converters write it: each way to split a piece into two, best score first."""
    vocab = {p.piece: i for i, p in enumerate(model.pieces)}
    merges = [(-model.pieces[i].score, i, k, [p[:k], p[k:]]) for p, i in vocab.items() if model.pieces[i].type == NORMAL
              for k in range(1, len(p)) if p[:k] in vocab and p[k:] in vocab]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    normalizer = pre = None
    if spaces == "normalizer":
        prepend = [{"type": "Prepend", "prepend": "\u2581"}] if first else []
        normalizer = {"type": "Sequence", "normalizers": prepend + [replace]}
    else:
        pre = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": spaces, "split": split}
    added = [{"id": i, "content": p.piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
              "special": True} for i, p in enumerate(model.pieces) if p.type in (UNKNOWN, CONTROL)]
    decoders = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre,
        "post_processor": None, "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "ignore_merges": False, "vocab": vocab, "merges": [m[-1] for m in sorted(merges)]}})


def texts(model):
    """Real ones, words of the vocabulary glued together, runs, odd characters, and what looks like a token."""
    words = [p.piece.replace("\u2581", " ") for p in model.pieces if p.type == NORMAL]
    odd = [" ", "  ", "\u2581", " \u2581", "\n", "\t", "\r\n", "<s>", "</s>", "<0x41>", "\u00e9", "e\u0301", "\u4e2d", "\U0001F600", "\u2582",
           "\ue000", "\x00", "\u200b", "\ufeff", "\u3000", "\u00a0", "a", "ab", "1998", "[INST]", "\u0301"]
    yield from ("", " ", "a", "\u2581", "\n", " a", "a ", "<s>", "<s>a", "a<s> b<s>")
    for n in range(1, 40):
        yield " " * n + "a" * n + "\u2581" * n + "\n" * n
    for text in found_texts([], 300000):
        start = rng.randrange(max(1, len(text) - 3000))
        yield text[start:start + 3000]
    for _ in range(300):
        yield "".join(rng.choice(words) for _ in range(rng.randrange(1, 60)))
        yield "".join(rng.choice(odd) for _ in range(rng.randrange(1, 60)))
        yield "".join(rng.choice((rng.choice(words), rng.choice(odd), chr(rng.randrange(1, 0xD800)))) for _ in range(rng.randrange(1, 90)))


def beside_sentencepiece(name, data, model):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    path = f"{work}/{name}.gguf"
    save_gguf(model, path)
    ours = Ours(lib, path)
    literal = [p.piece for p in model.pieces if p.type in (UNKNOWN, CONTROL, USER)]
    n = 0
    for text in texts(model):
        if any(t in text for t in literal):
            continue # their encoder does not look for control tokens, and puts no space behind tokens of the user
        got, want = ours.encode(text.encode()), theirs.encode(text)
        check(f"{name}: GGUF and sentencepiece", text, got, want)
        check(f"{name}: decoded", text, ours.decode_last().decode(), theirs.decode(want))
        n += len(want)
    print(f"{name}: {n} tokens as sentencepiece has them")


def beside_hugging_face(name, model):
    forms = {f"{spaces} first={first} split={split} normalized={normalized}": hugging_face(model, spaces, first, split, normalized)
             for spaces, first, split, normalized in (
                 ("normalizer", True, False, False), ("normalizer", True, False, True), ("normalizer", False, False, False),
                 ("first", True, False, False), ("always", True, True, False), ("never", False, True, True))}
    for kind, text_of_file in forms.items():
        folder = f"{work}/{name} {kind}".replace(" ", "-")
        os.makedirs(folder)
        open(f"{folder}/tokenizer.json", "w").write(text_of_file)
        theirs, ours, n = tokenizers.Tokenizer.from_str(text_of_file), Ours(lib, folder), 0
        for text in texts(model):
            got, want = ours.encode(text.encode()), theirs.encode(text, add_special_tokens=False).ids
            check(f"{name} {kind}: ids", text, got, want)
            if "normalized=True" not in kind: # their 0.23 decodes the normal form of such a token, 0.22 the token (docs/tokenizer.md)
                check(f"{name} {kind}: decoded", text, ours.decode_last().decode(), theirs.decode(want, skip_special_tokens=False))
            n += len(want)
        print(f"{name} {kind}: {n} tokens as tokenizers has them")


for name, data in models():
    model = form.ModelProto.FromString(data)
    beside_sentencepiece(name, data, model)
    if "v7" not in name:
        beside_hugging_face(name, model)
print(f"{failed} differences")
sys.exit(1 if failed else 0)
