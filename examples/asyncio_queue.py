#!/usr/bin/env python3
"""asyncio_queue.py - the library from Python through cffi: many samples at once, awaited in asyncio.

    python3 examples/asyncio_queue.py LIBRARY_FOLDER [MODEL_FOLDER]

A queue has a descriptor that is readable while callbacks wait, so asyncio's loop watches it like any socket, and callbacks run
on the loop's thread. The declarations come from the headers; nothing is compiled. Needs python3-cffi.
"""
import asyncio, pathlib, re, sys

import cffi

HEADERS = "types error future client train sample tokenizer engine".split()


def declarations(folder):
    """What cffi understands of the headers: no preprocessor, no attributes."""
    text = "".join((folder / f"{name}.h").read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#.*?[^\\]$", "", text, flags=re.S | re.M)  # a line with those that continue it
    text = re.sub(r'extern "C" \{|^\}$|TINKC_PIN_SIZE\([^;]*;|\bTINKC_API\b', "", text, flags=re.M)
    return text


class Library:
    def __init__(self, folder):
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations(pathlib.Path(__file__).parent.parent / "include/tinkc"))
        self.client = self.ffi.dlopen(f"{folder}/libtinkc.so")
        self.engine = self.ffi.dlopen(f"{folder}/libtinkc-engine.so")

    def call(self, function, *args):
        """function(*args, &err), with an exception for its error."""
        err = self.ffi.new("tinkc_error *")
        result = function(*args, err)
        if err.code:
            raise RuntimeError(self.ffi.string(err.message).decode())
        return result


class Samples:
    """Answers to prompts, as awaitables."""

    def __init__(self, lib, client, sampler):
        self.lib, self.sampler, self.waiting = lib, sampler, {}
        self.queue = lib.call(lib.client.tinkc_queue_new, client)
        self.on_done = lib.ffi.callback("tinkc_done_fn", self.finished)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(lib.client.tinkc_queue_fd(self.queue), self.run)

    def run(self):
        self.lib.call(self.lib.client.tinkc_queue_run, self.queue, 0)

    def finished(self, future, _):
        awaited = self.waiting.pop(future)
        try:
            got = self.lib.call(self.lib.client.tinkc_future_samples, future, 0)
            tokens = self.lib.client.tinkc_samples_at(got, 0).tokens
            awaited.set_result(self.lib.ffi.unpack(tokens.data, tokens.len))
        except RuntimeError as problem:
            awaited.set_exception(problem)
        self.lib.client.tinkc_future_free(future)

    async def sample(self, prompt, **settings):
        how = self.lib.ffi.new("tinkc_sampling *")
        self.lib.client.tinkc_sampling_init(how)  # the macro's values, as a function
        for name, value in settings.items():
            setattr(how, name, value)
        future = self.lib.call(self.lib.client.tinkc_sample, self.sampler, prompt, len(prompt), 1, how)
        self.waiting[future] = self.loop.create_future()
        awaited = self.waiting[future]
        self.lib.call(self.lib.client.tinkc_future_on_done, future, self.queue, self.on_done, self.lib.ffi.NULL)
        return await awaited

    def close(self):
        self.loop.remove_reader(self.lib.client.tinkc_queue_fd(self.queue))
        self.lib.client.tinkc_queue_free(self.queue)


class Tokenizer:
    def __init__(self, lib, folder):
        self.lib, self.raw = lib, lib.call(lib.client.tinkc_tokenizer_open, folder.encode(), lib.ffi.NULL)

    def chat(self, question):
        ids = self.lib.ffi.new("tinkc_tokens *")
        how = self.lib.ffi.new("tinkc_chat_options *", {"generation_prompt": True})
        messages = f'[{{"role": "user", "content": "{question}"}}]'.encode()
        self.lib.call(self.lib.client.tinkc_chat_encode, self.raw, messages, how, ids)
        prompt = self.lib.ffi.unpack(ids.data, ids.len)
        self.lib.client.tinkc_tokens_free(ids)
        return prompt

    def decode(self, ids):
        text = self.lib.ffi.new("tinkc_text *")
        how = self.lib.ffi.new("tinkc_decode_options *", {"skip_special": True})
        self.lib.call(self.lib.client.tinkc_decode_span, self.raw, ids, len(ids), how, text)
        answer = self.lib.ffi.string(text.data).decode()
        self.lib.client.tinkc_text_free(text)
        return answer


async def main(folder, model):
    lib = Library(folder)
    name = lib.ffi.new("char[]", b"nano")
    engine = lib.call(lib.engine.tinkc_engine_new, lib.ffi.NULL)
    lib.call(lib.engine.tinkc_engine_add_model, engine, name, model.encode())
    options = lib.ffi.new("tinkc_client_options *", {"transport": lib.engine.tinkc_engine_transport(engine)})
    client = lib.call(lib.client.tinkc_client_new, options)
    sampler = lib.call(lib.client.tinkc_sampler_new, client, lib.ffi.new("tinkc_sampler_options *", {"base_model": name}))
    tokenizer, samples = Tokenizer(lib, model), Samples(lib, client, sampler)

    async def ask(a, b):
        answer = tokenizer.decode(await samples.sample(tokenizer.chat(f"What is {a} + {b}?"), temperature=0, max_tokens=16))
        print(f"{a} + {b}: {answer}")
        return str(a + b) in answer

    right = sum(await asyncio.gather(*(ask(20 + i, 11) for i in range(8))))
    print(f"{right} of 8 sums are right")
    samples.close()
    lib.client.tinkc_tokenizer_free(tokenizer.raw)
    lib.client.tinkc_sampler_free(sampler)
    lib.client.tinkc_client_free(client)
    lib.engine.tinkc_engine_free(engine)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "models/nano"))
