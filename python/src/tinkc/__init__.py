"""Run Tinker programs on this machine.

    import tinkc

    with tinkc.serve() as server:                   # the shipped model, a free port, a store of its own
        client = server.client()                    # a tinker.ServiceClient, if tinker is installed
        trainer = client.create_lora_training_client("nano")

    tokenizer = tinkc.Tokenizer.from_pretrained("nano")
    tokenizer.encode("Hello")

``python -m tinkc ...`` and ``tinkc ...`` are the command. There is also a pytest plugin (tinkc.pytest_plugin).
"""

from ._errors import ProgramNotFoundError, ServerError, TinkcError, TokenizerError
from ._program import find_program, version
from ._serve import Server, serve
from ._tokenizer import Example, StreamDecoder, Tokenizer

__version__ = version()

__all__ = [
    "Example",
    "ProgramNotFoundError",
    "Server",
    "ServerError",
    "StreamDecoder",
    "TinkcError",
    "Tokenizer",
    "TokenizerError",
    "__version__",
    "find_program",
    "serve",
]
