"""The exceptions of this package."""


class TinkcError(Exception):
    """Any failure of tinkc."""


class ProgramNotFoundError(TinkcError, FileNotFoundError):
    """The program, or libtinkc, is not installed, or cannot run on this system."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ServerError(TinkcError):
    """The server did not start, or ended by itself.

    The message ends with the program's own words. ``log`` is all that it wrote, ``exit_code`` how it ended (None while it
    runs, negative for a signal).
    """

    def __init__(self, message: str, log: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.exit_code = exit_code


class TokenizerError(TinkcError, ValueError):
    """A tokenizer cannot be opened, or refuses its input. ``code`` is the library's name, such as "TINKC_E_TOKENIZER"."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code
