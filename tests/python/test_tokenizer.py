"""tinkc.Tokenizer: the library's tokenizer through ctypes.

Plain unittest; numpy's part runs where numpy is installed. The larger vectors are beside the checkout (../shared), where there is one.
"""

import array
import concurrent.futures
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

import tinkc

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED = ROOT.parent / "shared" / "data" / "tokenizers"
CHAT = [
    {"role": "user", "content": "What is 7 + 5?"},
    {"role": "assistant", "content": "12"},
    {"role": "user", "content": "And 1 + 1?"},
    {"role": "assistant", "content": "2"},
]
TEXTS = ["", "Hello, world", "naïve café – 東京 🙂", "  spaces\n\n\tand tabs  ", "<|im_start|>user", "a" * 5000]

try:
    import numpy
except ImportError:
    numpy = None


class Nano(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = tinkc.Tokenizer.from_pretrained("nano")


class Encoding(Nano):
    def test_decode_gives_back_what_was_encoded(self):
        for text in TEXTS:
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_a_batch_is_its_texts_one_by_one(self):
        alone = [self.tokenizer.encode(text) for text in TEXTS]
        for threads in (0, 1, 3):
            self.assertEqual(self.tokenizer.encode_batch(TEXTS, threads=threads), alone)
        self.assertEqual(self.tokenizer.encode_batch([]), [])
        self.assertEqual(self.tokenizer.decode_batch(alone), TEXTS)

    def test_count_is_the_number_of_tokens(self):
        for text in TEXTS:
            self.assertEqual(self.tokenizer.count(text), len(self.tokenizer.encode(text)))

    def test_offsets_cover_the_bytes_of_the_text(self):
        text = "naïve café"
        ids, places = self.tokenizer.encode_with_offsets(text)
        self.assertEqual(len(ids), len(places))
        self.assertEqual(b"".join(text.encode()[a:b] for a, b in places), text.encode())

    def test_special_tokens_of_strangers_are_text(self):
        mark = "<|im_start|>"
        self.assertEqual(self.tokenizer.encode(mark), [self.tokenizer.token_to_id(mark)])
        self.assertGreater(len(self.tokenizer.encode(mark, special="none")), 1)
        self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(mark), skip_special_tokens=True), "")

    def test_bytes_need_not_be_utf8(self):
        data = b"\xff\xfe ok"
        self.assertEqual(self.tokenizer.decode_bytes(self.tokenizer.encode(data)), data)

    def test_any_sequence_of_ids_is_decoded(self):
        ids = self.tokenizer.encode("Hello there")
        for given in (
            tuple(ids),
            iter(ids),
            array.array("i", ids),
            array.array("q", ids),
            memoryview(array.array("i", ids)),
        ):
            self.assertEqual(self.tokenizer.decode(given), "Hello there")

    def test_wrong_input_is_refused(self):
        with self.assertRaises(UnicodeEncodeError):
            self.tokenizer.encode("\ud800")
        with self.assertRaises(ValueError):
            self.tokenizer.encode("x", special="most")
        for ids in ([1 << 40], ["a"], [1.5]):
            with self.assertRaises((OverflowError, TypeError)):
                self.tokenizer.decode(ids)

    def test_threads_share_one_tokenizer(self):
        text = "The quick brown fox. " * 500
        alone = self.tokenizer.encode(text)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertTrue(all(ids == alone for ids in pool.map(self.tokenizer.encode, [text] * 64)))

    def test_a_forked_child_can_use_it(self):
        code = (
            "import os, tinkc\nt = tinkc.Tokenizer.from_pretrained('nano'); a = t.encode('Hello')\n"
            "pid = os.fork()\nif pid == 0: os._exit(0 if t.encode('Hello') == a else 1)\n"
            "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        )
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    def test_it_can_be_pickled(self):
        copy = pickle.loads(pickle.dumps(self.tokenizer))
        self.assertEqual(copy.encode("Hello"), self.tokenizer.encode("Hello"))

    def test_a_stream_holds_back_incomplete_characters(self):
        text = "🙂 café"
        decoder = self.tokenizer.decoder()
        pieces = [decoder.push(token) for token in self.tokenizer.encode(text)]
        self.assertEqual("".join(pieces) + decoder.finish(), text)
        self.assertFalse(any("\ufffd" in piece for piece in pieces))

    def test_ids_of_marks(self):
        self.assertIn(self.tokenizer.eos_token_id, self.tokenizer.end_ids)
        self.assertTrue(self.tokenizer.is_special(self.tokenizer.eos_token_id))
        self.assertIsNone(self.tokenizer.token_to_id("no such token"))
        self.assertEqual(self.tokenizer.token_bytes(self.tokenizer.vocab_size), b"")


@unittest.skipUnless(numpy, "numpy is not installed")
class Arrays(Nano):
    def test_arrays_have_the_same_tokens(self):
        for text in TEXTS:
            self.assertEqual(self.tokenizer.encode_array(text).tolist(), self.tokenizer.encode(text))
        tokens, ends = self.tokenizer.encode_batch_array(TEXTS)
        self.assertEqual(
            [part.tolist() for part in numpy.split(tokens, ends[:-1].astype(int))], self.tokenizer.encode_batch(TEXTS)
        )
        tokens, weights = self.tokenizer.training_arrays(CHAT)
        [example] = self.tokenizer.training_examples(CHAT)
        self.assertEqual((tokens.tolist(), weights.tolist()), (example.tokens, example.weights))

    def test_arrays_are_not_copies_and_keep_their_memory(self):
        tokens = self.tokenizer.encode_array("Hello " * 1000)
        self.assertFalse(tokens.flags.owndata)
        wanted = tokens.tolist()
        part = tokens[10:]
        del tokens
        for _ in range(100):  # would use the memory again
            self.tokenizer.encode_array("World " * 1000)
        self.assertEqual(part.tolist(), wanted[10:])

    def test_arrays_of_any_kind_are_decoded(self):
        ids = numpy.array(self.tokenizer.encode("Hello there"))
        for kind in (numpy.int32, numpy.int64, numpy.uint16):
            self.assertEqual(self.tokenizer.decode(ids.astype(kind)), "Hello there")
        frozen = ids.astype(numpy.int32)
        frozen.flags.writeable = False
        self.assertEqual(self.tokenizer.decode(frozen), "Hello there")
        self.assertEqual(self.tokenizer.decode(numpy.repeat(ids.astype(numpy.int32), 2)[::2]), "Hello there")
        with self.assertRaises(ValueError):
            self.tokenizer.decode(ids.reshape(1, -1))


class Conversations(Nano):
    def test_a_prompt_ends_where_the_assistant_speaks(self):
        text = self.tokenizer.render_chat(CHAT[:1], add_generation_prompt=True)
        self.assertTrue(text.endswith("<|im_start|>assistant\n"), text)
        self.assertEqual(
            self.tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True), self.tokenizer.encode(text)
        )

    def test_only_answers_are_learnt(self):
        [example] = self.tokenizer.training_examples(CHAT)
        learnt = [token for token, weight in zip(example.tokens, example.weights, strict=True) if weight]
        self.assertEqual(self.tokenizer.decode(learnt), "12<|im_end|>2<|im_end|>")
        [example] = self.tokenizer.training_examples(CHAT, train_on="last_assistant")
        learnt = [token for token, weight in zip(example.tokens, example.weights, strict=True) if weight]
        self.assertEqual(self.tokenizer.decode(learnt), "2<|im_end|>")

    def test_turns_can_be_split(self):
        examples = self.tokenizer.training_examples(CHAT, split_turns=True)
        self.assertEqual(len(examples), 2)

    def test_a_template_of_the_callers_is_used_with_its_variables(self):
        template = "{{ greeting }} {{ messages[0].content }}"
        text = self.tokenizer.render_chat(CHAT, chat_template=template, greeting="Ahoy:")
        self.assertEqual(text, "Ahoy: What is 7 + 5?")

    def test_a_template_that_refuses_is_heard(self):
        with self.assertRaisesRegex(tinkc.TokenizerError, "only pirates") as failed:
            self.tokenizer.render_chat(CHAT, chat_template="{{ raise_exception('only pirates') }}")
        self.assertEqual(failed.exception.code, "TINKC_E_TEMPLATE")
        with self.assertRaises(tinkc.TokenizerError):
            self.tokenizer.render_chat(CHAT, chat_template="{% if %}")

    def test_wrong_messages_are_refused(self):
        for messages in ([{"content": "no role"}], "not JSON", {"messages": 1}):
            with self.assertRaises(tinkc.TokenizerError):
                self.tokenizer.render_chat(messages)
        with self.assertRaises(ValueError):
            self.tokenizer.training_examples(CHAT, train_on="everything")


class Opening(unittest.TestCase):
    def test_what_cannot_be_opened_says_why(self):
        with self.assertRaisesRegex(tinkc.TokenizerError, "no such folder"):
            tinkc.Tokenizer.from_pretrained("/nowhere/model")
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')
            with self.assertRaises(tinkc.TokenizerError) as failed:
                tinkc.Tokenizer(folder)
        self.assertTrue(str(failed.exception))

    def test_a_name_is_downloaded_once(self):
        sys.path.insert(0, str(ROOT / "tests" / "support" / "client"))
        import hub_server

        nano = pathlib.Path(os.environ["TINKC_NANO"])
        hub = hub_server.Hub()
        hub.add("org/small", {name: (nano / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")})
        before = dict(os.environ)
        try:
            with tempfile.TemporaryDirectory() as cache:
                os.environ.update(HF_ENDPOINT=hub.url, HF_HUB_CACHE=cache)
                first = tinkc.Tokenizer.from_pretrained("org/small")
                self.assertEqual(first.encode("Hello"), tinkc.Tokenizer(nano).encode("Hello"))
                with self.assertRaisesRegex(tinkc.TokenizerError, "org/other.*not found"):
                    tinkc.Tokenizer.from_pretrained("org/other")
                hub.close()
                again = tinkc.Tokenizer.from_pretrained("org/small", offline=True)
                self.assertEqual(again.encode("Hello"), first.encode("Hello"))
                with self.assertRaisesRegex(tinkc.TokenizerError, "org/other"):
                    tinkc.Tokenizer.from_pretrained("org/other", offline=True)
        finally:
            os.environ.clear()
            os.environ.update(before)


class Vectors(unittest.TestCase):
    """Ids that transformers and tiktoken gave for the models' own files."""

    def opened(self, name):
        source = SHARED / name
        if not source.is_dir() or shutil.which("zstd") is None:
            self.skipTest("the shared tokenizers are not beside the checkout")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for file in source.iterdir():
            if file.suffix == ".zst":
                subprocess.run(["zstd", "-dqf", file, "-o", pathlib.Path(folder, file.stem)], check=True)
            else:
                shutil.copy(file, folder)
        return tinkc.Tokenizer(folder)

    def test_ids_are_those_of_others(self):
        for name, file in (("llama3", "llama3"), ("qwen2.5", "qwen2")):
            tokenizer = self.opened(name)
            rows = json.loads((SHARED / "vectors" / "rust-tiktoken" / f"{file}.json").read_text())
            self.assertTrue(rows)
            got = tokenizer.encode_batch([row["text"] for row in rows], special="none")
            self.assertEqual(got, [row["tokens"] for row in rows], name)


if __name__ == "__main__":
    unittest.main()
