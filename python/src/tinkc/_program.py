"""Finds the program that the wheel installed, and the files that came with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterator

from ._errors import ProgramNotFoundError

NEEDS = "the wheel needs Linux with glibc 2.28 or later (not musl) on x86-64 or arm64"


def version() -> str:
    """The version of the installed package; "0" in a source tree."""
    try:
        return importlib.metadata.version("tinkc")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _installed(ending: str) -> Iterator[pathlib.Path]:
    """Where pip wrote a file of this package, wherever it was asked to put scripts and data."""
    try:
        files = importlib.metadata.files("tinkc") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.as_posix().endswith(ending):
            yield pathlib.Path(str(file.locate())).resolve()


def _places() -> Iterator[pathlib.Path]:
    yield from _installed("bin/tinkc")
    yield pathlib.Path(sysconfig.get_path("scripts")) / "tinkc"
    if sys.flags.no_user_site == 0:
        yield pathlib.Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))) / "tinkc"
    yield pathlib.Path(__file__).parent.parent / "bin" / "tinkc"  # pip install --target


def find_program() -> str:
    """The path of the program ``tinkc`` that belongs to this package; $TINKC_PROGRAM names another."""
    given = os.environ.get("TINKC_PROGRAM")
    if given:
        if os.access(given, os.X_OK):
            return given
        raise ProgramNotFoundError(f"TINKC_PROGRAM names a file that cannot be run: {given}")
    looked = []
    for path in _places():
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
        looked.append(str(path))
    raise ProgramNotFoundError(
        "the program tinkc was not found in " + ", ".join(dict.fromkeys(looked)) + "; install the wheel again, "
        "or set TINKC_PROGRAM"
    )


def nano_folder() -> str | None:
    """The folder of the shipped model."""
    given = os.environ.get("TINKC_NANO")
    if given:
        return given
    for config in _installed("models/nano/config.json"):
        if config.is_file():
            return str(config.parent)
    try:
        program = pathlib.Path(find_program()).resolve()
    except ProgramNotFoundError:
        return None
    for place in ("../share/tinkc/models/nano", "../models/nano"):
        folder = program.parent / place
        if (folder / "config.json").is_file():
            return str(folder.resolve())
    return None


def environment() -> dict[str, str]:
    """The program's environment. Names the module of the package tinkc-cuda that this Python has: by itself the program
    finds only one in the environment that it is installed in."""
    given = dict(os.environ)
    spec = importlib.util.find_spec("tinkc_cuda")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        module = pathlib.Path(folder, "libtinkc-engine-cuda.so")
        if module.is_file():
            given.setdefault("TINKC_CUDA_MODULE", str(module))
    return given


def cannot_run(program: str, why: str | None) -> ProgramNotFoundError:
    """Why the system refuses to start a program that is there: usually its loader is missing."""
    return ProgramNotFoundError(f"{program} cannot be started ({why}); {NEEDS}")


def loader_refusal(words: str) -> str | None:
    """The loader's own words in a program's output, where the C library is older than the program needs."""
    lines = (line for line in words.splitlines() if "version `GLIBC_" in line and "not found" in line)
    return next(lines, None)


def run(args: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; its output as text."""
    program = find_program()
    try:
        return subprocess.run(
            [program, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment()
        )
    except OSError as problem:
        raise cannot_run(program, problem.strerror) from problem


def main() -> None:
    """Becomes the command: ``python -m tinkc``."""
    try:
        program = find_program()
        try:
            os.execve(program, ["tinkc", *sys.argv[1:]], environment())
        except OSError as problem:
            raise cannot_run(program, problem.strerror) from problem
    except ProgramNotFoundError as problem:
        sys.exit(f"error: {problem}")
