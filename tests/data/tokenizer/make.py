#!/usr/bin/env python3
"""make.py: writes the tiny tokenizers in this folder, one for each way that files of the families differ, and what
Hugging Face tokenizers (tiktoken for the rank file) makes of a few texts; and patterns.json, what patterns match.

Needs the Python packages tokenizers and tiktoken. The training text is our own, below, so the files are ours as
well. Run it in this folder; the results are in version control, for clones without network.
"""
import base64, json, os, subprocess
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = CL100K.replace("{1,3}", "")
MARKS = QWEN.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*"]
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([c + SUFFIX for c in CASED] + [r"\p{N}{1,3}", TAIL])
TEKKEN = "|".join(CASED + [r"\p{N}", TAIL])
THREE = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
         " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
HAN = "|".join([r"[\p{Han}]+"] + [c.replace("\\p{M}]", "\\p{M}&&[^\\p{Han}]]") + SUFFIX
                                 for c in CASED] + [r"\p{N}{1,3}", TAIL.replace("[\\r\\n/]*", "[\\r\\n]*")])
TEXT = """A tokenizer turns text into numbers and numbers back into text. It doesn't care what the words mean;
it's only asked to be exact, every time, for every text that anybody can type. The quick way and the slow way
must agree: that is what these lines are for. Numbers such as 1, 22, 333 and 4444 come apart in threes.
We're here, they've gone, I'll stay, he'd say, SHE'S RIGHT. def f(x):\n    return x + 1  # a comment\n
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Où est le café? Съешь ещё этих мягких булок.
いろはにほへと ちりぬるを 吾輩は猫である。名前はまだ無い。 天地玄黄 宇宙洪荒 日月盈昃 辰宿列张
""" * 4
TEXTS = ["", " ", "a", "hello world", "Hello, World! It's 12345 o'clock.", "the the the", "  two  spaces   ",
         "tabs\tand\nnewlines\r\n\r\n  x", "we're WE'RE 'S 'ſ 'll'LL", "Zwölf Boxkämpfer", "cafe\u0301 e\u0301\u0301",
         "吾輩は猫である。名前はまだ無い。", "emoji 😀👩‍👩‍👧 ok", "<|end|>text<|end|><|end|>", "a<tool>b</tool> c",
         "left   <|strip|>   right", "word<|alone|>word <|alone|> word", "a" * 100, "-" * 70, "\u00a0\u3000x\u0085",
         "\x00\x01\x7f", "𝒳𝒴 ᾳ ǆ Ǆ ǅ", "１２３４ ٣٤٥ Ⅻ", "x" * 17 + "é" * 20, "def f(x):\n    return x + 1", "한국어 각",
         "\u1112\u1161\u11ab \u0915\u093c \U00011935\U00011930", "<|e", "e\u0301<|end|>\u0301e"]


# What patterns in tokenizer files use: classes, properties, counts, groups, lookaround, anchors, sets, folding.
PATTERNS = ["", ".", "a", "^", "^ ", "\\s", "\\S+", "\\w+", "\\W+", "\\d{1,3}", "\\d{2,}", "\\h+", "\\H+", "[a-c]+", "[^a-c]+",
            "[\\w-]+", "[\\d.]+", "[^\\s\\d]+", "[a-z&&[^aeiou]]+",
            "\\p{L}+", "\\P{L}+", "\\p{Lu}\\p{Ll}*", "\\p{N}", "\\p{Nd}{1,2}", "\\p{P}+", "\\p{S}", "\\p{M}+",
            "\\p{Han}+", "\\p{Hiragana}+|\\p{Katakana}+", "\\p{Cyrillic}+", "\\p{Greek}+", "\\p{Z}+", "[\\x00-\\x1f]",
            "\\x{1F600}", "\\u00e4|\\u00f6", "[\\u3040-\\u309f]+", "a|ab|abc", "(?:ab|a)c?", "(a)(b)?", "(?i:ab|straße)+",
            "(?i)x", "(?i:[k-s]+)", "a*", "a+?", "a{2,3}?", "a++b?", "(?>a|ab)c", "x?+", "\\bt", "\\w+\\b", "\\Bo",
            "t(?=h)", "t(?!h)", "(?<=t)h", "(?<!t)h", "\\Athe", "\\z", "e$", "\\n+", "\\r?\\n", "(?:\\r?\\n)+(?!\\r?\\n)",
            "\\s+(?!\\S)", "\\s+$", " ?\\p{L}+| ?\\p{N}+", "'(?i:[sdmt]|ll|ve|re)", "\\[[^\\]]+\\]", "</?[^>]+>",
            "(?<=[\\u0400-\\u04ff]) ", "[-+*/]=|==|\\d+\\.\\d+", "([.!?])\\1*", "\\$|\\^|\\.", "{", "}", "a{,3}", "[\\]\\[]+"]


def write_patterns():
    rows = []
    for pattern in PATTERNS:
        try:
            split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
            rows.append({"pattern": pattern, "matches": [[m for m, _ in split.pre_tokenize_str(t)] for t in TEXTS]})
        except BaseException as e:  # a panic of the Rust side is not an Exception
            print("left out:", pattern, e)
    with open("patterns.json", "w") as out:  # one pattern on each line
        out.write('{"inputs": ' + json.dumps(TEXTS) + ', "patterns": [\n')
        out.write(",\n".join(map(json.dumps, rows)) + "\n]}\n")


def splits(patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def train(tok):
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def write_vectors(folder, rows):
    with open(folder + "/vectors.jsonl", "w") as out:
        for text, ids, marks in rows:
            row = {"text": text, "ids": ids, "special": True, "add_special": marks}
            out.write(json.dumps(row, ensure_ascii=True) + "\n")


def write_tokenizer(folder, tok, merges_as_text=False):
    os.makedirs(folder, exist_ok=True)
    tok.save(folder + "/tokenizer.json", pretty=False)
    if merges_as_text:  # as files were written until 2024
        whole = json.load(open(folder + "/tokenizer.json"))
        whole["model"]["merges"] = [" ".join(m) for m in whole["model"]["merges"]]
        json.dump(whole, open(folder + "/tokenizer.json", "w"), ensure_ascii=False, separators=(",", ":"))
    write_vectors(folder, [(t, tok.encode(t, add_special_tokens=m).ids, m) for t in TEXTS for m in (False, True)])


def make(folder, pattern, nfc, ignore_merges):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(tok)
    tok.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True),
                            AddedToken("<|strip|>", lstrip=True, rstrip=True, special=True),
                            AddedToken("<|alone|>", single_word=True, special=True)])
    tok.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("</tool>", normalized=True),
                    AddedToken("cafe\u0301", normalized=True)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B",
                                      special_tokens=[("<|begin|>", tok.token_to_id("<|begin|>"))])])
    write_tokenizer(folder, tok)
    json.dump({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": None,
               "tokenizer_class": "PreTrainedTokenizerFast", "chat_template":
               "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}",
               "added_tokens_decoder": {"9999": {"content": "<|late|>", "special": True}}},
              open(folder + "/tokenizer_config.json", "w"), indent=1)


def make_family(folder, steps, normalizer=None, ignore_merges=False, merges_as_text=False, packed=False):
    """One family's way of splitting, without the added tokens that tiny has."""
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    train(tok)
    tok.add_special_tokens(["<|end|>"])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    write_tokenizer(folder, tok, merges_as_text)
    if packed:
        subprocess.run(["zstd", "-q", "-f", "--rm", "-19", folder + "/tokenizer.json"], check=True)


def make_ranks(folder):
    """A rank file with a pattern of its own family; its 256 special tokens follow the ranks."""
    byte_of = {chr(b if c is None else c): b for b, c in byte_chars().items()}
    source = json.load(open("tiny-o200k/tokenizer.json"))["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in text): i for text, i in source.items()}
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/tiktoken.model", "w") as out:
        for text, rank in sorted(ranks.items(), key=lambda item: item[1]):
            out.write(base64.b64encode(text).decode() + f" {rank}\n")
    special = {"[BOS]": len(ranks), "[EOS]": len(ranks) + 1, "<|end|>": len(ranks) + 2}
    json.dump({"bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer",
               "added_tokens_decoder": {str(i): {"content": t, "special": True} for t, i in special.items()}},
              open(folder + "/tokenizer_config.json", "w"), indent=1)
    enc = tiktoken.Encoding(folder, pat_str=HAN, mergeable_ranks=ranks, special_tokens=special)
    write_vectors(folder, [(t, enc.encode(t, allowed_special="all"), False) for t in TEXTS])


def byte_chars():
    """Bytes to the characters that stand for them in byte-level files; None = the byte's own."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in own]
    return {**{b: None for b in own}, **{b: 256 + i for i, b in enumerate(rest)}}


make("tiny", CL100K, nfc=False, ignore_merges=True)
make("tiny-nfc", QWEN, nfc=True, ignore_merges=False)
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
make_family("tiny-gpt2", [pre_tokenizers.ByteLevel(add_prefix_space=False)], merges_as_text=True)
make_family("tiny-marks", splits([MARKS]) + [byte_level], normalizers.NFC())
make_family("tiny-o200k", splits([O200K]) + [byte_level], ignore_merges=True)
make_family("tiny-tekken", splits([TEKKEN]) + [byte_level], ignore_merges=True, packed=True)
make_family("tiny-three", splits(THREE) + [byte_level], normalizers.Sequence([]), merges_as_text=True)
make_family("tiny-pattern", splits([r"\d{1,3}(?=(?:\d{3})*\b)", r"\s+|\w+|[^\w\s]+"]) + [byte_level])
make_ranks("tiny-ranks")
write_patterns()
