"""pytest plugin: a Tinker server for tests.

Fixtures: ``tinker_server`` (one for the session; with xdist one for each worker) and ``tinker_client``, a
tinker.ServiceClient for it. Options: ``--tinker-model``, ``--tinker-device``. Marker: ``tinker_no_network``: the test may
only use loopback.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ._serve import Server, serve

if TYPE_CHECKING:
    import tinker

_server = pytest.StashKey[Server]()
_DEAD_PROXY = "http://127.0.0.1:9"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinkc", "a Tinker server for tests")
    group.addoption(
        "--tinker-model",
        action="append",
        metavar="MODEL",
        help="model that the fixture tinker_server serves: a folder, NAME=FOLDER or a name on a hub; may be repeated "
        "(default: nano, the one that comes with tinkc)",
    )
    group.addoption("--tinker-device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N (default: auto)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tinker_no_network: the test may connect to this machine only")


def _threads() -> int | None:
    """Workers of xdist share the processors."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None


@pytest.fixture(scope="session")
def tinker_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running tinkc.Server."""
    models = request.config.getoption("--tinker-model") or ["nano"]
    device = request.config.getoption("--tinker-device")
    server = serve(models, device=device, threads=_threads())
    with server:
        request.config.stash[_server] = server
        yield server


@pytest.fixture
def tinker_client(tinker_server: Server) -> tinker.ServiceClient:
    """A tinker.ServiceClient for the server. The environment stays as it is."""
    tinker_server.check()
    return tinker_server.client()


# ---- a server that ends during a test ----


def _checked(item: pytest.Item) -> Generator[None, Any, Any]:
    """The server's end interrupts what waits for it: that is an error of the test, not the end of the session."""
    try:
        return (yield)
    except KeyboardInterrupt:
        server = item.config.stash.get(_server, None)
        if server is not None:
            server.check()
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _checked(item))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _checked(item))


# ---- no network ----


def _is_local(family: int, address: object) -> bool:
    if family == socket.AF_UNIX:
        return True
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    return host in ("", "localhost", "::1", "0.0.0.0", "::") or host.startswith(("127.", "::ffff:127."))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("tinker_no_network") is not None and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "_tinker_no_network")


@pytest.fixture
def _tinker_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own sockets refuse other machines; native clients get a proxy that refuses, and the hub's offline mode."""

    def refuse(address: object) -> None:
        raise ConnectionRefusedError(f"tinker_no_network: this test may not connect to {address!r}")

    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if not _is_local(self.family, address):
            refuse(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if not _is_local(self.family, address):
            refuse(address)
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _is_local(socket.AF_INET, (name,)):
            refuse(name)
        return getaddrinfo(host, *args, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, _DEAD_PROXY)
        monkeypatch.setenv(name.lower(), _DEAD_PROXY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost,::1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TINKC_OFFLINE", "1")
