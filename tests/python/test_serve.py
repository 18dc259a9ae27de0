"""tinkc.serve: a server that is ready when the block begins, gone when it ends, and speaks when it fails.

Plain unittest; tests/python/test_package.sh sets TINKC_PROGRAM and PYTHONPATH.
"""

import asyncio
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import tinkc

LIMIT_S = 60  # for what must happen at some time; nothing is measured


def ask(server, path="/api/v1/healthz", key=None):
    request = urllib.request.Request(server.base_url + path, headers={"X-API-Key": key or server.api_key})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.read()


def await_end(pid):
    """Waits until a process that is not a child has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(watched) as process:
        if not select.select([process], [], [], LIMIT_S)[0]:
            raise AssertionError(f"process {pid} still runs")


def run_python(code, **options):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)


class Starting(unittest.TestCase):
    def test_it_answers_as_soon_as_the_block_begins(self):
        with tinkc.serve() as server:
            self.assertEqual(json.loads(ask(server))["status"], "ok")
            models = json.loads(ask(server, "/api/v1/get_server_capabilities"))["supported_models"]
            self.assertEqual([m["model_name"] for m in models], ["nano"])

    def test_a_mapping_names_the_models(self):
        with tinkc.serve({"tiny": os.environ["TINKC_NANO"]}) as server:
            models = json.loads(ask(server, "/api/v1/get_server_capabilities"))["supported_models"]
        self.assertEqual([m["model_name"] for m in models], ["tiny"])

    def test_without_a_block_start_and_close_do_the_same(self):
        server = tinkc.serve()
        with self.assertRaises(tinkc.TinkcError):
            server.base_url  # noqa: B018
        server.start()
        pid = server.pid
        ask(server)
        server.close()
        server.close()
        await_end(pid)
        self.assertFalse(server.is_running)

    def test_a_server_starts_once(self):
        with tinkc.serve() as server, self.assertRaises(tinkc.TinkcError):
            server.start()

    def test_the_environment_is_set_inside_the_block_and_restored(self):
        os.environ["TINKER_API_KEY"] = "before"
        os.environ.pop("TINKER_BASE_URL", None)
        with tinkc.serve(set_environment=True) as server:
            self.assertEqual(os.environ["TINKER_BASE_URL"], server.base_url)
            self.assertEqual(os.environ["TINKER_API_KEY"], server.api_key)
        self.assertEqual(os.environ.pop("TINKER_API_KEY"), "before")
        self.assertNotIn("TINKER_BASE_URL", os.environ)

    def test_a_key_is_the_only_one_accepted(self):
        with tinkc.serve(api_key="tml-right") as server:
            ask(server, "/api/v1/get_server_capabilities")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                ask(server, "/api/v1/get_server_capabilities", "tml-wrong")
        self.assertEqual(refused.exception.code, 401)

    def test_two_servers_share_nothing(self):
        with tinkc.serve() as one, tinkc.serve() as two:
            self.assertNotEqual(one.base_url, two.base_url)
            self.assertNotEqual(one.store, two.store)

    def test_a_temporary_store_is_removed_and_a_named_one_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            with tinkc.serve() as server:
                temporary = server.store
                self.assertTrue(os.path.isdir(temporary))
            self.assertFalse(os.path.exists(temporary))
            with tinkc.serve(store=folder) as server:
                pass
            self.assertTrue(os.listdir(folder))

    def test_the_log_is_kept_in_the_file_that_was_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "log")
            with tinkc.serve(log=path) as server:
                url = server.base_url
            self.assertIn(url, path.read_text())

    def test_it_can_be_started_and_closed_in_asyncio(self):
        async def main():
            async with tinkc.serve() as server:
                await asyncio.to_thread(ask, server)
                return server.pid

        await_end(asyncio.run(main()))

    def test_a_start_that_is_cancelled_leaves_no_server(self):
        servers = []

        async def main():
            server = tinkc.serve()
            servers.append(server)
            async with server:
                self.fail("not reached")

        async def cancelled():
            task = asyncio.create_task(main())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        self.assertFalse(servers[0].is_running)
        if servers[0]._process is not None:
            self.assertIsNotNone(servers[0]._process.poll())


class Failing(unittest.TestCase):
    def test_a_failed_start_carries_the_programs_words(self):
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
            broken = pathlib.Path(folder, "broken")
            broken.mkdir()
            (broken / "meta.db").write_bytes(b"this is not a database" * 200)
            large = pathlib.Path(folder, "large")
            large.mkdir()
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                shutil.copy(pathlib.Path(os.environ["TINKC_NANO"], name), large)
            with (large / "model.safetensors").open("wb") as weights:
                weights.truncate(1 << 42)
            file = pathlib.Path(folder, "file")
            file.write_text("")
            cases = {
                "no such model": (dict(models=["/nowhere/model"]), "/nowhere/model: not a folder"),
                "model too large": (dict(models=[large]), "does not fit into memory"),
                "port taken": (dict(port=taken.getsockname()[1]), "in use"),
                "store cannot be made": (dict(store=file / "store"), str(file)),
                "broken store": (dict(store=broken), "meta.db is damaged"),
                "unknown device": (dict(device="abacus"), "unknown device 'abacus'"),
                "unknown option": (dict(options=["--no-such-option"]), "--no-such-option"),
            }
            for name, (options, words) in cases.items():
                with self.subTest(name), self.assertRaises(tinkc.ServerError) as failed, tinkc.serve(**options):
                    pass
                self.assertIn(words, str(failed.exception), name)
                self.assertIn(words, failed.exception.log)
                self.assertNotEqual(failed.exception.exit_code, 0)

    def test_no_models_is_a_mistake_of_the_caller(self):
        for models in ([], {}):
            with self.assertRaises(ValueError):
                tinkc.serve(models)

    def test_a_program_that_is_never_ready_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "tinkc")
            program.write_text("#!/bin/sh\necho $$ > " + folder + "/pid\necho still loading >&2\nexec sleep 1000\n")
            program.chmod(0o755)
            with other_program(program), self.assertRaises(tinkc.ServerError) as failed:
                tinkc.serve(timeout=1).start()
            self.assertIn("not ready after 1 s", str(failed.exception))
            self.assertIn("still loading", str(failed.exception))
            await_end(int(pathlib.Path(folder, "pid").read_text()))

    def test_a_program_of_another_system_is_reported_as_such(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "tinkc")
            program.write_text("#!/nowhere/loader\n")
            program.chmod(0o755)
            with other_program(program), self.assertRaisesRegex(tinkc.ProgramNotFoundError, "glibc 2.28"):
                tinkc.serve().start()
            with other_program(program):
                done = subprocess.run([sys.executable, "-m", "tinkc"], capture_output=True, text=True)
            self.assertIn("glibc 2.28", done.stderr)

    def test_a_c_library_that_is_too_old_is_reported_in_the_loaders_words(self):
        refusal = "tinkc: /lib/libc.so.6: version `GLIBC_2.28' not found (required by tinkc)"
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "tinkc")
            program.write_text(f"#!/bin/sh\ncat >&2 << 'E'\n{refusal}\nE\nexit 1\n")
            program.chmod(0o755)
            with other_program(program), self.assertRaises(tinkc.ProgramNotFoundError) as failed:
                tinkc.serve().start()
        self.assertIn(refusal, str(failed.exception))
        self.assertIn("needs Linux with glibc 2.28 or later", str(failed.exception))

    @unittest.skipIf(subprocess.run("unshare -rn true", shell=True, capture_output=True).returncode, "no namespaces")
    def test_without_a_free_port_it_says_so(self):
        code = (
            "import fcntl, socket, struct, tinkc\n"
            "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))  # SIOCSIFFLAGS: up\n"
            "open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('50000 50000')\n"
            "taken = socket.create_server(('127.0.0.1', 50000))\n"
            "tinkc.serve().start()\n"
        )
        done = subprocess.run(["unshare", "-rn", sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertIn("127.0.0.1: no port is free", done.stderr)

    def test_a_missing_program_says_where_it_was_looked_for(self):
        with other_program("/nowhere/tinkc"), self.assertRaisesRegex(tinkc.ProgramNotFoundError, "/nowhere/tinkc"):
            tinkc.find_program()


class other_program:  # noqa: N801 - used like a function
    def __init__(self, path):
        self.path = str(path)

    def __enter__(self):
        self.before, os.environ["TINKC_PROGRAM"] = os.environ["TINKC_PROGRAM"], self.path

    def __exit__(self, *_):
        os.environ["TINKC_PROGRAM"] = self.before


class Dying(unittest.TestCase):
    """A server that ends by itself while somebody waits."""

    def setUp(self):  # a shell's background jobs ignore it
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def test_it_interrupts_also_where_sigint_is_ignored(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with self.assertRaisesRegex(tinkc.ServerError, "ended by signal 9"), tinkc.serve() as server:
            signal.raise_signal(signal.SIGINT)  # still ignored
            os.kill(server.pid, signal.SIGKILL)
            threading.Event().wait(LIMIT_S)
            self.fail("not interrupted")
        self.assertIs(signal.getsignal(signal.SIGINT), signal.SIG_IGN)

    def test_it_interrupts_what_waits_in_the_block(self):
        with self.assertRaisesRegex(tinkc.ServerError, "ended by signal 9"), tinkc.serve() as server:
            os.kill(server.pid, signal.SIGKILL)
            threading.Event().wait(LIMIT_S)
            self.fail("not interrupted")

    def test_it_interrupts_what_is_awaited(self):
        async def main():
            async with tinkc.serve() as server:
                os.kill(server.pid, signal.SIGKILL)
                await asyncio.sleep(LIMIT_S)
                self.fail("not interrupted")

        async def outer():
            with self.assertRaisesRegex(tinkc.ServerError, "ended by signal 9"):
                await main()
            if sys.version_info >= (3, 11):  # the interruption is over
                self.assertEqual(asyncio.current_task().cancelling(), 0)

        asyncio.run(outer())

    def test_an_exception_of_the_block_becomes_the_cause(self):
        with self.assertRaises(tinkc.ServerError) as failed, tinkc.serve() as server:
            os.kill(server.pid, signal.SIGKILL)
            try:
                threading.Event().wait(LIMIT_S)
            except KeyboardInterrupt:
                raise ConnectionError("refused") from None
        self.assertIsInstance(failed.exception.__cause__, ConnectionError)

    def test_a_keyboard_interrupt_stays_one(self):
        with self.assertRaises(KeyboardInterrupt), tinkc.serve():
            signal.raise_signal(signal.SIGINT)

    def test_outside_a_block_it_is_found_by_check(self):
        server = tinkc.serve().start()
        server.check()
        os.kill(server.pid, signal.SIGKILL)
        self.assertTrue(server._died.wait(LIMIT_S))
        with self.assertRaises(tinkc.ServerError):
            server.check()
        server.close()


class LeftBehind(unittest.TestCase):
    """No server outlives its Python."""

    START = "import os, sys, tinkc; server = tinkc.serve().start(); print(server.pid, flush=True);"

    def pid_of(self, python):
        return int(python.stdout.readline())

    def test_python_is_killed(self):
        python = run_python(self.START + "sys.stdin.read()", stdin=subprocess.PIPE)
        pid = self.pid_of(python)
        python.kill()
        await_end(pid)
        python.communicate()

    def test_python_ends_without_closing_it(self):
        python = run_python(self.START)
        pid = self.pid_of(python)
        await_end(pid)
        python.communicate()

    def test_python_exits_at_once(self):
        python = run_python(self.START + "os._exit(0)")
        pid = self.pid_of(python)
        await_end(pid)
        python.communicate()

    def test_a_forked_child_does_not_keep_it(self):
        code = self.START + "child = os.fork() or os.execvp('sleep', ['sleep', '1000']); print(child, flush=True);"
        fork = self.START + "child = os.fork()\nif child == 0:\n    import time; time.sleep(1000)\nprint(child, flush=True);"
        for name, program in (("child that runs a program", code), ("child that stays Python", fork)):
            with self.subTest(name):
                python = run_python(program + "sys.stdin.read()", stdin=subprocess.PIPE)
                pid, child = self.pid_of(python), int(python.stdout.readline())
                python.kill()
                try:
                    await_end(pid)
                finally:
                    os.kill(child, signal.SIGKILL)
                python.stdin.close()
                python.wait()
                python.stdout.close()

    def test_an_object_that_is_forgotten_ends_its_server(self):
        server = tinkc.serve().start()
        process = server._process
        del server
        self.assertIsNotNone(process.wait(LIMIT_S))


class Card(unittest.TestCase):
    """The wheel tinkc-cuda beside this one."""

    def test_the_program_gets_the_module_of_this_python_unless_another_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "tinkc")
            program.write_text('#!/bin/sh\necho "module: $TINKC_CUDA_MODULE."\n')
            program.chmod(0o755)
            module = pathlib.Path(folder, "packages/tinkc_cuda/libtinkc-engine-cuda.so")
            paths = os.pathsep.join([str(module.parents[1]), os.environ["PYTHONPATH"]])
            given = dict(os.environ, TINKC_PROGRAM=str(program), PYTHONPATH=paths)
            given.pop("TINKC_CUDA_MODULE", None)

            def says(**more):
                command = [sys.executable, "-m", "tinkc"]
                return subprocess.run(command, env=given | more, capture_output=True, text=True, check=True).stdout.strip()

            self.assertEqual(says(), "module: .")
            module.parent.mkdir(parents=True)
            self.assertEqual(says(), "module: .")  # a package without the library
            module.touch()
            self.assertEqual(says(), f"module: {module}.")
            self.assertEqual(says(TINKC_CUDA_MODULE="/else.so"), "module: /else.so.")


class Command(unittest.TestCase):
    def test_python_m_is_the_command(self):
        program = subprocess.run([tinkc.find_program(), "--version"], capture_output=True, text=True, check=True)
        module = subprocess.run([sys.executable, "-m", "tinkc", "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(module.stdout, program.stdout)
        failed = subprocess.run([sys.executable, "-m", "tinkc", "no-such-command"], capture_output=True, text=True)
        self.assertEqual(failed.returncode, 2)


if __name__ == "__main__":
    unittest.main()
