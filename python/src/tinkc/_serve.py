"""``tinkc serve`` as a Python object.

The server and this process share two pipes. On the first the server writes its address when it is ready; its end without
an address means that the server has ended. The second is held open by this process alone: the server stops when it ends
(``--stop-fd``), so it cannot outlive Python, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from ._errors import ServerError, TinkcError
from ._program import cannot_run, environment, find_program, loader_refusal

if TYPE_CHECKING:
    import tinker

    Models = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]]

LOCAL_KEY = "tml-local"  # what a server without keys is given; any other is accepted, too
TAIL_LINES = 20

_held: set[int] = set()  # our ends of the pipes; a forked child must not keep a server running


def _close_held() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_held)


def _release(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


def _model_arguments(models: Models) -> list[str]:
    if isinstance(models, Mapping) and models:
        return [f"{name}={os.fspath(folder)}" for name, folder in models.items()]
    if isinstance(models, (str, os.PathLike)):
        models = [models]
    if not models:
        raise ValueError("models is empty: name a folder, a model on a hub, or nano")
    return [os.fspath(model) for model in models]


class Server:
    """A server of the Tinker API in a process of its own; made by :func:`serve`.

    Use it as a context manager (``with`` or ``async with``), or with :meth:`start` and :meth:`close`. If the server ends by
    itself inside a ``with`` block, what waits there is interrupted and the block raises :class:`ServerError`.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        store: str | os.PathLike[str] | None,
        api_key: str | None,
        set_environment: bool,
        log: str | os.PathLike[str] | None,
        timeout: float,
    ) -> None:
        self._arguments = arguments
        self._store = None if store is None else os.fspath(store)
        self._key = api_key
        self._set_environment = set_environment
        self._log_path = log
        self._timeout = timeout
        self._lock = threading.Lock()  # of what follows
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._stop = -1
        self._log: IO[bytes] | None = None
        self._log_text = ""  # after the end
        self._temporary: str | None = None
        self._environment: dict[str, str | None] = {}
        self._closing = False
        self._died = threading.Event()
        self._inside: int | tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._interrupted = False
        self._sigint: Any = None  # the handler that was replaced
        self._finalizer: weakref.finalize[[int, str | None, IO[bytes]], Server] | None = None

    # ---- what it is ----

    @property
    def base_url(self) -> str:
        """Its address, for TINKER_BASE_URL."""
        if self._url is None:
            raise TinkcError("the server is not running: use it in a with block, or call start()")
        return self._url

    @property
    def api_key(self) -> str:
        """A key that it accepts, for TINKER_API_KEY."""
        return self._key if self._key is not None else LOCAL_KEY

    @property
    def pid(self) -> int | None:
        """Its process; None before the start and after the end."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        return self._url is not None and self._process is not None and self._process.poll() is None

    @property
    def store(self) -> str | None:
        """The folder of its checkpoints; a temporary one is removed when it is closed."""
        return self._store if self._store is not None else self._temporary

    @property
    def log(self) -> str:
        """All that the server has written to its standard error."""
        if self._log is None:
            return self._log_text
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def check(self) -> None:
        """Raises ServerError if the server has ended by itself."""
        if self._died.is_set():
            raise self._error("the server has ended")

    def client(self, **options: Any) -> tinker.ServiceClient:
        """A tinker.ServiceClient for this server; options are passed on."""
        try:
            import tinker
        except ImportError as problem:
            raise ImportError("the package tinker is not installed: pip install tinker") from problem
        return tinker.ServiceClient(**{"base_url": self.base_url, "api_key": self.api_key, **options})

    def __repr__(self) -> str:
        return f"<tinkc.Server {self._url or 'not running'}>"

    # ---- start ----

    def start(self) -> Server:
        """Starts it and waits until it is ready. Raises ServerError with the program's words if it does not get there."""
        with self._lock:
            if self._process is not None:
                raise TinkcError("the server was started before; make another with tinkc.serve()")
            if self._closing:
                raise TinkcError("the server was closed")
            ready = self._spawn()
        try:
            self._url = self._await_address(ready)
        except BaseException:
            self.close(kill=True)
            raise
        finally:
            os.close(ready)
        watch = threading.Thread(target=_watch, args=(weakref.ref(self), self._process), name="tinkc-server", daemon=True)
        watch.start()
        if self._set_environment:
            self._enter_environment()
        return self

    def _spawn(self) -> int:
        """Starts the process; the descriptor on which it says that it is ready."""
        program = find_program()
        if self._log_path is not None:
            self._log = open(self._log_path, "w+b")  # noqa: SIM115 - closed with the server
        else:
            self._log = tempfile.TemporaryFile(prefix="tinkc-log-")  # noqa: SIM115
        if self._store is None:
            self._temporary = tempfile.mkdtemp(prefix="tinkc-store-")
        ready, ready_theirs = os.pipe()
        stop_theirs, self._stop = os.pipe()
        _held.add(self._stop)
        self._finalizer = weakref.finalize(self, _abandon, self._stop, self._temporary, self._log)
        command = [program, "serve", "--ready-fd", str(ready_theirs), "--stop-fd", str(stop_theirs)]
        command += ["--store", str(self.store), *self._arguments]
        if self._key is not None:
            command += ["--auth-token-file", "-"]
        variables = environment()
        if self._temporary is not None:
            variables["TINKC_SHARE_STORE"] = "0"  # nobody else knows it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if self._key is not None else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=(ready_theirs, stop_theirs),
                env=variables,
                start_new_session=True,  # Ctrl-C is Python's
            )
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError), self._process.stdin as keys:
                    keys.write(f"{self._key}\n".encode())
        except OSError as problem:
            os.close(ready)
            self._clean_up()
            raise cannot_run(program, problem.strerror) from problem
        finally:
            os.close(ready_theirs)
            os.close(stop_theirs)
        return ready

    def _await_address(self, ready: int) -> str:
        deadline = time.monotonic() + self._timeout
        address = b""
        while not address.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([ready], [], [], left)[0]:
                raise self._error(f"the server was not ready after {self._timeout:g} s")
            part = os.read(ready, 4096)
            if not part:
                assert self._process is not None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
                raise self._failed_start()
            address += part
        return address.decode().strip()

    def _failed_start(self) -> TinkcError:
        refused = loader_refusal(self.log)
        return cannot_run(find_program(), refused) if refused else self._error("the server did not start")

    def _error(self, what: str) -> ServerError:
        log = self.log
        code = self._process.poll() if self._process is not None else None
        words = "\n".join(log.splitlines()[-TAIL_LINES:])
        ended = "" if code is None else f" (exit code {code})" if code >= 0 else f" (ended by signal {-code})"
        return ServerError(f"{what}{ended}" + (f":\n{words}" if words else ""), log, code)

    def _enter_environment(self) -> None:
        for name, value in (("TINKER_BASE_URL", self.base_url), ("TINKER_API_KEY", self.api_key)):
            self._environment[name] = os.environ.get(name)
            os.environ[name] = value

    # ---- the end ----

    def _ended(self) -> None:
        """The process has ended: interrupts a block that waits for a server that has gone."""
        with self._lock:
            if self._closing:
                return
            self._died.set()
            inside = self._inside
            self._interrupted = inside is not None
            if isinstance(inside, tuple):
                loop, task = inside
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(task.cancel)
            elif inside is not None:
                signal.pthread_kill(inside, signal.SIGINT)  # wakes what waits there

    def close(self, *, kill: bool = False) -> None:
        """Stops it: requests under way may finish within 10 seconds. May be called again."""
        with self._lock:
            self._closing = True
        if self._process is not None:
            if kill and self._process.poll() is None:
                self._process.kill()
            _release(self._stop)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._clean_up()

    def _clean_up(self) -> None:
        self._url = None
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment.clear()
        if self._log is not None:
            self._log_text = self.log
            self._log = None
        if self._finalizer is not None:
            self._finalizer()

    # ---- blocks ----

    def __enter__(self) -> Server:
        self.start()
        with self._lock:
            if threading.current_thread() is threading.main_thread():
                if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
                    self._sigint = signal.signal(signal.SIGINT, self._on_signal)
                self._inside = threading.get_ident()
        return self

    def _on_signal(self, number: int, frame: object) -> None:
        """Where SIGINT is ignored, only the end of the server interrupts."""
        if self._interrupted:
            raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        died = False
        try:
            with self._lock:
                self._inside = None
                died = self._died.is_set()
            self.close()
            if self._interrupted and kind is not KeyboardInterrupt:
                time.sleep(0.01)  # the interruption may not have arrived yet
        except KeyboardInterrupt:
            if not self._interrupted:
                raise
            self.close()
        if self._sigint is not None:
            signal.signal(signal.SIGINT, self._sigint)
        if died:
            raise self._error("the server has ended") from (None if kind is KeyboardInterrupt else value)

    async def __aenter__(self) -> Server:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with self._lock:
                self._closing = True
                if self._process is not None:
                    self._process.kill()
            with contextlib.suppress(TinkcError):
                await starting
            self.close()
            raise
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._inside = (asyncio.get_running_loop(), task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside = None
            died = self._died.is_set()
        if self._interrupted and kind is asyncio.CancelledError:
            task: Any = asyncio.current_task()
            if hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.close))
        if died:
            raise self._error("the server has ended") from (None if kind is asyncio.CancelledError else value)


def _watch(server: weakref.ref[Server], process: subprocess.Popen[bytes]) -> None:
    """A thread for each server; does not keep the object."""
    process.wait()
    found = server()
    if found is not None:
        found._ended()


def _abandon(stop: int, temporary: str | None, log: IO[bytes]) -> None:
    """What is left of a server that is closed, or was forgotten: its pipe, its log and its temporary store."""
    _release(stop)
    log.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def serve(
    models: Models = ("nano",),
    *,
    device: str = "auto",
    store: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    set_environment: bool = False,
    openai: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    settings: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
    log: str | os.PathLike[str] | None = None,
    timeout: float = 120.0,
) -> Server:
    """A server of the Tinker API on this machine; ``with`` starts it.

    models           folders, names on a hub, or a mapping of names to folders; "nano" is the shipped one
    device           "auto", "cpu", "cuda" or "cuda:N"
    store            folder of checkpoints and runs; None = a temporary one, removed at the end
    port             0 = any that is free
    api_key          the one key that it accepts ("tml-..."); None = any, and ``server.api_key`` is one
    set_environment  sets TINKER_BASE_URL and TINKER_API_KEY in os.environ until the end
    openai           also serves OpenAI's clients, under /v1
    threads, memory  limits: processors, and bytes such as "4G"
    settings         settings of the engine (docs/server.md), as with --set
    options          further options of ``tinkc serve``
    log              file for what the server writes; None = kept for ``server.log`` and errors
    timeout          seconds until it must be ready; models of a hub are downloaded first
    """
    arguments = [*_model_arguments(models), "--device", device, "--host", host, "--port", str(port)]
    if openai:
        arguments.append("--openai")
    if threads is not None:
        arguments += ["--threads", str(threads)]
    if memory is not None:
        arguments += ["--memory", str(memory)]
    for name, value in (settings or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments += ["--set", f"{name}={text}"]
    if log is not None:
        log = pathlib.Path(log)
    return Server(
        [*arguments, *options],
        store=store,
        api_key=api_key,
        set_environment=set_environment,
        log=log,
        timeout=timeout,
    )
