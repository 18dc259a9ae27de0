#!/usr/bin/env python3
"""make.py: writes the tiny tokenizers in this folder and what Hugging Face tokenizers makes of a few texts.

Needs the Python package tokenizers. The training text is our own, below, so the files
are ours as well. Run it in this folder; the results are in version control, for clones without network.
"""
import json
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = CL100K.replace("{1,3}", "")
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


def make(folder, pattern, nfc, ignore_merges):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([TEXT], trainer)
    tok.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True),
                            AddedToken("<|strip|>", lstrip=True, rstrip=True, special=True),
                            AddedToken("<|alone|>", single_word=True, special=True)])
    tok.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("</tool>", normalized=True),
                    AddedToken("cafe\u0301", normalized=True)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B",
                                      special_tokens=[("<|begin|>", tok.token_to_id("<|begin|>"))])])
    tok.save(folder + "/tokenizer.json", pretty=False)
    json.dump({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": None,
               "tokenizer_class": "PreTrainedTokenizerFast", "chat_template":
               "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}",
               "added_tokens_decoder": {"9999": {"content": "<|late|>", "special": True}}},
              open(folder + "/tokenizer_config.json", "w"), indent=1)
    with open(folder + "/vectors.jsonl", "w") as out:
        for text in TEXTS:
            for marks in (False, True):
                ids = tok.encode(text, add_special_tokens=marks).ids
                row = {"text": text, "ids": ids, "special": True, "add_special": marks}
                out.write(json.dumps(row, ensure_ascii=True) + "\n")


make("tiny", CL100K, nfc=False, ignore_merges=True)
make("tiny-nfc", QWEN, nfc=True, ignore_merges=False)
