"""libtinkc through ctypes: the structs and functions that the tokenizer uses (include/tinkc/tokenizer.h).

ctypes releases Python's lock during every call, so threads encode at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from ._errors import ProgramNotFoundError, TokenizerError
from ._program import NEEDS


class Error(Structure):
    _fields_ = (
        ("code", c_int32),
        ("http_status", c_int32),
        ("category", c_int32),
        ("flags", ctypes.c_uint32),
        ("request_id", c_char * 64),
        ("message", c_char * 400),
        ("cause", c_int32),
        ("retry_after_ms", c_int32),
        ("reserved", c_uint64 * 3),
    )


class Str(Structure):
    _fields_ = (("data", c_char_p), ("len", c_size_t))


class Bytes(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t))


class Ids(Structure):
    _fields_ = (("data", POINTER(c_int32)), ("len", c_size_t))


class Tokens(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t), ("cap", c_size_t), ("a", c_void_p))


class Floats(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t), ("cap", c_size_t), ("a", c_void_p))


class Sizes(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t), ("cap", c_size_t), ("a", c_void_p))


class Text(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t), ("cap", c_size_t), ("a", c_void_p))


class TokenizerOptions(Structure):
    _fields_ = (
        ("allocator", c_void_p),
        ("cache_dir", c_char_p),
        ("hub_url", c_char_p),
        ("hub_token", c_char_p),
        ("offline", c_bool),
        ("no_compiled_cache", c_bool),
        ("reserved_bools", c_bool * 6),
        ("reserved", c_uint64 * 4),
    )


class EncodeOptions(Structure):
    _fields_ = (
        ("special", c_int32),
        ("threads", c_int32),
        ("add_special", c_bool),
        ("any_bytes", c_bool),
        ("reserved_bools", c_bool * 6),
        ("reserved", c_uint64 * 4),
    )


class DecodeOptions(Structure):
    _fields_ = (
        ("skip_special", c_bool),
        ("raw_bytes", c_bool),
        ("reserved_bools", c_bool * 6),
        ("reserved", c_uint64 * 4),
    )


class ChatOptions(Structure):
    _fields_ = (
        ("renderer", c_char_p),
        ("chat_template", c_void_p),
        ("template_name", c_char_p),
        ("tools_json", c_char_p),
        ("documents_json", c_char_p),
        ("variables_json", c_char_p),
        ("continue_field", c_char_p),
        ("now_us", c_int64),
        ("max_bytes", c_int64),
        ("max_steps", c_int64),
        ("train_on", c_int32),
        ("generation_prompt", c_bool),
        ("split_turns", c_bool),
        ("openai_calls", c_bool),
        ("reserved_bools", c_bool * 1),
        ("reserved", c_uint64 * 6),
    )


SIZES = {Error: 512, TokenizerOptions: 72, EncodeOptions: 48, DecodeOptions: 40, ChatOptions: 136, Tokens: 32}

_P = c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tinkc_tokenizer_open": (_P, (c_char_p, POINTER(TokenizerOptions), POINTER(Error))),
    "tinkc_tokenizer_resolve": (c_bool, (c_char_p, c_char_p, POINTER(Text), POINTER(Text), POINTER(Error))),
    "tinkc_tokenizer_free": (None, (_P,)),
    "tinkc_tokenizer_size": (c_int32, (_P,)),
    "tinkc_tokenizer_ends": (Ids, (_P,)),
    "tinkc_tokenizer_special": (c_int32, (_P, c_int32)),
    "tinkc_tokenizer_id": (c_int32, (_P, c_char_p)),
    "tinkc_tokenizer_bytes": (Bytes, (_P, c_int32)),
    "tinkc_tokenizer_is_special": (c_bool, (_P, c_int32)),
    "tinkc_tokenizer_template": (c_char_p, (_P, c_char_p)),
    "tinkc_encode_span": (
        c_bool,
        (_P, c_char_p, c_size_t, POINTER(EncodeOptions), POINTER(Tokens), POINTER(Sizes), POINTER(Error)),
    ),
    "tinkc_encode_many": (
        c_bool,
        (_P, POINTER(Str), c_size_t, POINTER(EncodeOptions), POINTER(Tokens), POINTER(Sizes), POINTER(Error)),
    ),
    "tinkc_encode_count": (c_size_t, (_P, c_char_p, c_size_t, POINTER(EncodeOptions), POINTER(Error))),
    "tinkc_decode_span": (c_bool, (_P, _P, c_size_t, POINTER(DecodeOptions), POINTER(Text), POINTER(Error))),
    "tinkc_decoder_new": (_P, (_P, POINTER(DecodeOptions), POINTER(Error))),
    "tinkc_decoder_push": (c_bool, (_P, _P, c_size_t, POINTER(Text), POINTER(Error))),
    "tinkc_decoder_finish": (c_bool, (_P, POINTER(Text), POINTER(Error))),
    "tinkc_decoder_free": (None, (_P,)),
    "tinkc_template_parse": (_P, (c_char_p, c_size_t, _P, POINTER(Error))),
    "tinkc_template_free": (None, (_P,)),
    "tinkc_chat_render": (c_bool, (_P, c_char_p, POINTER(ChatOptions), POINTER(Text), POINTER(Error))),
    "tinkc_chat_encode": (c_bool, (_P, c_char_p, POINTER(ChatOptions), POINTER(Tokens), POINTER(Error))),
    "tinkc_chat_train": (
        c_bool,
        (_P, c_char_p, POINTER(ChatOptions), POINTER(Tokens), POINTER(Floats), POINTER(Sizes), POINTER(Error)),
    ),
    "tinkc_chat_stops": (POINTER(c_char_p), (_P, c_char_p, POINTER(Error))),
    "tinkc_chat_renderer": (c_char_p, (c_char_p,)),
    "tinkc_code_name": (c_char_p, (c_int32,)),
    "tinkc_tokens_free": (None, (POINTER(Tokens),)),
    "tinkc_floats_free": (None, (POINTER(Floats),)),
    "tinkc_sizes_free": (None, (POINTER(Sizes),)),
    "tinkc_text_free": (None, (POINTER(Text),)),
}


def _open() -> ctypes.CDLL:
    given = os.environ.get("TINKC_LIBRARY")
    mac = sys.platform == "darwin"
    beside = pathlib.Path(__file__).with_name("libtinkc.dylib" if mac else "libtinkc.so")
    path = given or (str(beside) if beside.is_file() else "libtinkc.0.dylib" if mac else "libtinkc.so.0")
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise ProgramNotFoundError(f"libtinkc cannot be loaded: {problem}; {NEEDS}") from problem


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library with the types of its functions; opened on first use."""
    lib = _open()
    for struct, size in SIZES.items():
        assert ctypes.sizeof(struct) == size, struct
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def check(err: Error) -> None:
    """Raises what a call has reported."""
    if err.code:
        raise TokenizerError(err.message.decode("utf-8", "replace"), library().tinkc_code_name(err.code).decode())


class Owned:
    """A growable array of the library, freed with this object."""

    def __init__(self, struct: type[Tokens] | type[Floats] | type[Sizes] | type[Text], item: Any, free: str) -> None:
        self._free = getattr(library(), free)
        self.struct = struct()
        self._item = item

    def __del__(self) -> None:
        self._free(ctypes.byref(self.struct))

    @property
    def ref(self) -> Any:
        return ctypes.byref(self.struct)

    def view(self) -> ctypes.Array[Any]:
        """The items where they are; keeps this object alive."""
        count = self.struct.len
        items: ctypes.Array[Any] = (self._item * count).from_address(self.struct.data) if count else (self._item * 0)()
        items._owner = self  # type: ignore[attr-defined]
        return items

    def bytes(self) -> bytes:
        return ctypes.string_at(self.struct.data, self.struct.len) if self.struct.len else b""


def tokens() -> Owned:
    return Owned(Tokens, c_int32, "tinkc_tokens_free")


def floats() -> Owned:
    return Owned(Floats, c_float, "tinkc_floats_free")


def sizes() -> Owned:
    return Owned(Sizes, c_size_t, "tinkc_sizes_free")


def text() -> Owned:
    return Owned(Text, c_char, "tinkc_text_free")
