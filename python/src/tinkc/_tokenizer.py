"""The tokenizer of libtinkc: text to tokens and back, chat templates, views for training.

Results are those of the model's own files under Hugging Face's tokenizers and transformers. One tokenizer serves all
threads; a call releases Python's lock. Functions that end in ``_array`` return numpy arrays over the library's memory,
without a copy.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from . import _library as c
from ._errors import TinkcError, TokenizerError
from ._program import nano_folder, run

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Messages = Sequence[Mapping[str, Any]] | Mapping[str, Any] | str

Special = Literal["all", "some", "none"]
TrainOn = Literal["all_assistant", "last_assistant", "last_turn", "all_messages", "all_tokens", "user_and_system", "marked"]
_SPECIAL = {"all": 0, "some": 1, "none": 2}
_TRAIN_ON = {
    "all_assistant": 0,
    "last_assistant": 1,
    "last_turn": 2,
    "all_messages": 3,
    "all_tokens": 4,
    "user_and_system": 5,
    "marked": 6,
}


@dataclass(frozen=True)
class Example:
    """A conversation as tokens, and for each whether it is learnt: 0 or 1."""

    tokens: list[int]
    weights: list[float]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as problem:
        raise ImportError("functions that end in _array need numpy: pip install numpy") from problem
    return numpy


def _choice(table: Mapping[str, int], name: str, what: str) -> int:
    if name not in table:
        raise ValueError(f"{what}: {name!r} is not one of {', '.join(table)}")
    return table[name]


def _as_ids(ids: Any) -> tuple[Any, int]:
    """Where 32-bit ids are, without a copy if they are a contiguous buffer of them; and how many."""
    try:
        view = memoryview(ids)
    except TypeError:
        view = memoryview(array.array("i", ids))
    if view.format not in ("i", "<i", "=i") or view.itemsize != 4 or not view.c_contiguous or view.ndim != 1:
        if view.ndim != 1:
            raise ValueError("ids must have one dimension")
        view = memoryview(array.array("i", view.tolist()))
    if view.readonly:
        return ctypes.cast(ctypes.c_char_p(view.tobytes()), ctypes.c_void_p), view.nbytes // 4
    return (ctypes.c_int32 * (view.nbytes // 4)).from_buffer(view), view.nbytes // 4


def _json(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode()


def _cached(repo: str, revision: str) -> str:
    """The folder of a repository in Hugging Face's cache."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    folder = pathlib.Path(hub).expanduser() / f"models--{repo.replace('/', '--')}"
    branch = folder / "refs" / (revision or "main")
    commit = branch.read_text().strip() if branch.is_file() else revision
    found = folder / "snapshots" / commit
    if not commit or not found.is_dir():
        raise TokenizerError(f"{repo} is not in the cache ({folder}), and offline is set", "TINKC_E_OFFLINE")
    return str(found)


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """What a command with --json says when it fails."""
    try:
        return str(json.loads(done.stderr)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return done.stderr.strip() or f"exit code {done.returncode}"


def _snapshot(name: str, revision: str | None, offline: bool) -> str:
    """The folder of a tokenizer of a hub, downloaded if it is not in the cache."""
    lib, err, repo, pinned = c.library(), c.Error(), c.text(), c.text()
    lib.tinkc_tokenizer_resolve(name.encode(), None, repo.ref, pinned.ref, ctypes.byref(err))
    c.check(err)
    wanted, at = repo.bytes().decode(), revision or pinned.bytes().decode()
    if offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return _cached(wanted, at)
    done = run(["pull", f"{wanted}@{at}" if at else wanted, "--tokenizer-only", "--json", "--no-progress"])
    if done.returncode != 0:
        raise TokenizerError(f"{name}: {_words(done)}", "TINKC_E_TOKENIZER")
    return str(json.loads(done.stdout)["folder"])


class Tokenizer:
    """A tokenizer; immutable. Opened from a model folder, a tokenizer.json or a tiktoken.model."""

    def __init__(self, path: str | os.PathLike[str], *, compiled_cache: bool = True) -> None:
        """compiled_cache: keep the file's fast form beside it or in the user's cache, for the next time."""
        self._lib = c.library()
        self._handle = None
        self.source = os.fspath(path)
        err = c.Error()
        options = c.TokenizerOptions(no_compiled_cache=not compiled_cache)
        self._handle = self._lib.tinkc_tokenizer_open(os.fsencode(path), ctypes.byref(options), ctypes.byref(err))
        c.check(err)

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False
    ) -> Tokenizer:
        """A folder, "nano" for the shipped model, or a model's name on a hub (files go to Hugging Face's cache)."""
        path = pathlib.Path(name)
        if path.exists():
            return cls(path)
        if os.fspath(name) == "nano":
            folder = nano_folder()
            if folder is None:
                raise TinkcError("the model nano was not found; set TINKC_NANO to its folder")
            return cls(folder)
        if path.is_absolute() or os.fspath(name).count("/") != 1 or os.fspath(name).startswith("."):
            raise TokenizerError(
                f"{os.fspath(name)}: there is no such folder, and it is not a name on a hub", "TINKC_E_FILE"
            )
        return cls(_snapshot(os.fspath(name), revision, offline))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.tinkc_tokenizer_free(self._handle)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        return Tokenizer, (os.path.abspath(self.source),)

    def __repr__(self) -> str:
        return f"<tinkc.Tokenizer {self.source}, {self.vocab_size} tokens>"

    # ---- queries ----

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return int(self._lib.tinkc_tokenizer_size(self._handle))

    def __len__(self) -> int:
        return self.vocab_size

    def _special(self, which: int) -> int | None:
        found = int(self._lib.tinkc_tokenizer_special(self._handle, which))
        return None if found < 0 else found

    @property
    def bos_token_id(self) -> int | None:
        return self._special(1)

    @property
    def eos_token_id(self) -> int | None:
        return self._special(2)

    @property
    def pad_token_id(self) -> int | None:
        return self._special(3)

    @property
    def unk_token_id(self) -> int | None:
        return self._special(4)

    @property
    def end_ids(self) -> list[int]:
        """Ids that end an answer."""
        ends = self._lib.tinkc_tokenizer_ends(self._handle)
        return list(ends.data[: ends.len])

    def token_to_id(self, token: str) -> int | None:
        """The id of exactly this token."""
        found = int(self._lib.tinkc_tokenizer_id(self._handle, token.encode()))
        return None if found < 0 else found

    def token_bytes(self, token_id: int) -> bytes:
        """What an id decodes to; empty for an unknown id."""
        found = self._lib.tinkc_tokenizer_bytes(self._handle, token_id)
        return ctypes.string_at(found.data, found.len) if found.len else b""

    def is_special(self, token_id: int) -> bool:
        return bool(self._lib.tinkc_tokenizer_is_special(self._handle, token_id))

    def chat_template(self, name: str | None = None) -> str | None:
        """The text of a chat template; None = it has none."""
        found = self._lib.tinkc_tokenizer_template(self._handle, None if name is None else name.encode())
        return None if found is None else found.decode()

    def stop_strings(self, renderer: str | None = None) -> list[str]:
        """Where an answer ends, for sampling; empty = the end tokens are enough."""
        err = c.Error()
        stops = self._lib.tinkc_chat_stops(self._handle, None if renderer is None else renderer.encode(), ctypes.byref(err))
        c.check(err)
        found: list[str] = []
        while stops and stops[len(found)] is not None:
            found.append(stops[len(found)].decode())
        return found

    # ---- encode ----

    def _encode(self, text: str | bytes, add_special_tokens: bool, special: Special, offsets: c.Owned | None) -> c.Owned:
        data = text.encode() if isinstance(text, str) else text
        options = c.EncodeOptions(
            special=_choice(_SPECIAL, special, "special"),
            add_special=add_special_tokens,
            any_bytes=isinstance(text, bytes),
        )
        out, err = c.tokens(), c.Error()
        self._lib.tinkc_encode_span(
            self._handle,
            data,
            len(data),
            ctypes.byref(options),
            out.ref,
            None if offsets is None else offsets.ref,
            ctypes.byref(err),
        )
        c.check(err)
        return out

    def encode(self, text: str | bytes, *, add_special_tokens: bool = False, special: Special = "all") -> list[int]:
        """The tokens of a text. Bytes need not be UTF-8.

        special: which added tokens are looked for in the text: "all" as Hugging Face does, "some" not those marked special,
        "none" for text from strangers.
        """
        return self._encode(text, add_special_tokens, special, None).view()[:]

    def encode_array(
        self, text: str | bytes, *, add_special_tokens: bool = False, special: Special = "all"
    ) -> npt.NDArray[np.int32]:
        """The same as a numpy array."""
        numpy = _numpy()
        array_: npt.NDArray[np.int32] = numpy.frombuffer(
            self._encode(text, add_special_tokens, special, None).view(), dtype=numpy.int32
        )
        return array_

    def encode_with_offsets(
        self, text: str | bytes, *, add_special_tokens: bool = False, special: Special = "all"
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens, and where each begins and ends in the text's UTF-8 bytes."""
        places = c.sizes()
        ids = self._encode(text, add_special_tokens, special, places).view()[:]
        flat = places.view()[:]
        return ids, list(zip(flat[::2], flat[1::2], strict=True))

    def count(self, text: str | bytes, *, add_special_tokens: bool = False) -> int:
        """The number of tokens, without making them."""
        data = text.encode() if isinstance(text, str) else text
        options = c.EncodeOptions(add_special=add_special_tokens, any_bytes=isinstance(text, bytes))
        err = c.Error()
        found = self._lib.tinkc_encode_count(self._handle, data, len(data), ctypes.byref(options), ctypes.byref(err))
        c.check(err)
        return int(found)

    def _encode_many(
        self, texts: Iterable[str], add_special_tokens: bool, special: Special, threads: int
    ) -> tuple[c.Owned, c.Owned]:
        data = [text.encode() for text in texts]
        spans = (c.Str * len(data))()
        for span, piece in zip(spans, data, strict=True):
            span.data, span.len = piece, len(piece)
        options = c.EncodeOptions(
            special=_choice(_SPECIAL, special, "special"),
            threads=threads or os.cpu_count() or 1,
            add_special=add_special_tokens,
        )
        out, ends, err = c.tokens(), c.sizes(), c.Error()
        self._lib.tinkc_encode_many(
            self._handle, spans, len(data), ctypes.byref(options), out.ref, ends.ref, ctypes.byref(err)
        )
        c.check(err)
        return out, ends

    def encode_batch(
        self, texts: Iterable[str], *, add_special_tokens: bool = False, special: Special = "all", threads: int = 0
    ) -> list[list[int]]:
        """Many texts on several threads; 0 = all processors."""
        out, ends = self._encode_many(texts, add_special_tokens, special, threads)
        ids, begin, found = out.view()[:], 0, []
        for end in ends.view():
            found.append(ids[begin:end])
            begin = end
        return found

    def encode_batch_array(
        self, texts: Iterable[str], *, add_special_tokens: bool = False, special: Special = "all", threads: int = 0
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uintp]]:
        """All tokens behind each other, and where each text ends in them: text i is ``tokens[ends[i - 1]:ends[i]]``."""
        numpy = _numpy()
        out, ends = self._encode_many(texts, add_special_tokens, special, threads)
        return numpy.frombuffer(out.view(), dtype=numpy.int32), numpy.frombuffer(ends.view(), dtype=numpy.uintp)

    # ---- decode ----

    def _decode(self, ids: Any, skip_special_tokens: bool, raw: bool) -> bytes:
        data, count = _as_ids(ids)
        options = c.DecodeOptions(skip_special=skip_special_tokens, raw_bytes=raw)
        out, err = c.text(), c.Error()
        self._lib.tinkc_decode_span(self._handle, data, count, ctypes.byref(options), out.ref, ctypes.byref(err))
        c.check(err)
        return out.bytes()

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of tokens. Bytes that are not UTF-8 become U+FFFD; unknown ids are left out.

        An array of 32-bit integers is read where it is; any other sequence is copied.
        """
        return self._decode(ids, skip_special_tokens, False).decode()

    def decode_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> bytes:
        """Exactly the bytes, UTF-8 or not."""
        return self._decode(ids, skip_special_tokens, True)

    def decode_batch(self, batch: Iterable[Iterable[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in batch]

    def decoder(self, *, skip_special_tokens: bool = False) -> StreamDecoder:
        """For tokens that arrive one by one."""
        return StreamDecoder(self, skip_special_tokens)

    # ---- conversations ----

    def apply_chat_template(
        self,
        messages: Messages,
        *,
        tools: Sequence[Any] | str | None = None,
        documents: Sequence[Any] | str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_name: str | None = None,
        renderer: str | None = None,
        **variables: Any,
    ) -> list[int]:
        """The conversation as tokens, ready for a model.

        chat_template: a template to use instead of the model's. renderer: one of the cookbook's names, such as
        "qwen3_disable_thinking". Further names are variables of the template, such as ``enable_thinking=False``.
        """
        out, err = c.tokens(), c.Error()
        with _Chat(self, locals(), variables) as chat:
            self._lib.tinkc_chat_encode(self._handle, chat.messages, chat.ref, out.ref, ctypes.byref(err))
        c.check(err)
        return out.view()[:]

    def render_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Any] | str | None = None,
        documents: Sequence[Any] | str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_name: str | None = None,
        renderer: str | None = None,
        **variables: Any,
    ) -> str:
        """The same as text."""
        out, err = c.text(), c.Error()
        with _Chat(self, locals(), variables) as chat:
            self._lib.tinkc_chat_render(self._handle, chat.messages, chat.ref, out.ref, ctypes.byref(err))
        c.check(err)
        return out.bytes().decode()

    def _train(self, given: dict[str, Any], variables: dict[str, Any]) -> tuple[c.Owned, c.Owned, c.Owned]:
        out, weights, ends, err = c.tokens(), c.floats(), c.sizes(), c.Error()
        with _Chat(self, given, variables) as chat:
            self._lib.tinkc_chat_train(
                self._handle, chat.messages, chat.ref, out.ref, weights.ref, ends.ref, ctypes.byref(err)
            )
        c.check(err)
        return out, weights, ends

    def training_examples(
        self,
        messages: Messages,
        *,
        train_on: TrainOn = "all_assistant",
        split_turns: bool = False,
        tools: Sequence[Any] | str | None = None,
        chat_template: str | None = None,
        template_name: str | None = None,
        renderer: str | None = None,
        **variables: Any,
    ) -> list[Example]:
        """The conversation as training examples: one, or with split_turns one for each answer."""
        out, weights, ends = self._train(locals(), variables)
        ids, learnt, begin, found = out.view()[:], weights.view()[:], 0, []
        for end in ends.view():
            found.append(Example(ids[begin:end], learnt[begin:end]))
            begin = end
        return found

    def training_arrays(
        self,
        messages: Messages,
        *,
        train_on: TrainOn = "all_assistant",
        tools: Sequence[Any] | str | None = None,
        chat_template: str | None = None,
        template_name: str | None = None,
        renderer: str | None = None,
        **variables: Any,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The one example of a conversation as numpy arrays: tokens and weights."""
        numpy = _numpy()
        out, weights, _ = self._train(locals(), variables)
        return numpy.frombuffer(out.view(), dtype=numpy.int32), numpy.frombuffer(weights.view(), dtype=numpy.float32)


class _Chat:
    """The options of one call; frees the template that was parsed for it."""

    def __init__(self, tokenizer: Tokenizer, given: dict[str, Any], variables: dict[str, Any]) -> None:
        self._lib = c.library()
        self.messages = _json(given["messages"])
        renderer, name, template = given["renderer"], given["template_name"], given["chat_template"]
        self._options = c.ChatOptions(
            renderer=None if renderer is None else renderer.encode(),
            template_name=None if name is None else name.encode(),
            tools_json=_json(given["tools"]),
            documents_json=_json(given.get("documents")),
            variables_json=_json(variables) if variables else None,
            continue_field=b"content" if given.get("continue_final_message") else None,
            train_on=_choice(_TRAIN_ON, given.get("train_on", "all_assistant"), "train_on"),
            generation_prompt=given.get("add_generation_prompt", False),
            split_turns=given.get("split_turns", False),
        )
        if template is not None:
            err, text = c.Error(), template.encode()
            self._options.chat_template = self._lib.tinkc_template_parse(text, len(text), None, ctypes.byref(err))
            c.check(err)

    @property
    def ref(self) -> Any:
        return ctypes.byref(self._options)

    def __enter__(self) -> _Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.tinkc_template_free(self._options.chat_template)


class StreamDecoder:
    """Text of tokens that arrive one by one: a character that is not complete is held back. For one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = False) -> None:
        self._lib = c.library()
        self._handle = None
        options, err = c.DecodeOptions(skip_special=skip_special_tokens), c.Error()
        self._handle = self._lib.tinkc_decoder_new(tokenizer._handle, ctypes.byref(options), ctypes.byref(err))
        c.check(err)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.tinkc_decoder_free(self._handle)

    def push(self, ids: int | Iterable[int]) -> str:
        """The text that is complete now."""
        data, count = _as_ids([ids] if isinstance(ids, int) else ids)
        out, err = c.text(), c.Error()
        self._lib.tinkc_decoder_push(self._handle, data, count, out.ref, ctypes.byref(err))
        c.check(err)
        return out.bytes().decode()

    def finish(self) -> str:
        """What was held back, as U+FFFD; the decoder begins again."""
        out, err = c.text(), c.Error()
        self._lib.tinkc_decoder_finish(self._handle, out.ref, ctypes.byref(err))
        c.check(err)
        return out.bytes().decode()
