"""tinkc.pytest_plugin, each rule in a pytest of its own. Run by tests/interop/test_python_package.sh: needs pytest and xdist."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest


def run_pytest(text, *options):
    """Runs pytest on a file with this text; (outcome counts, output)."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "test_it.py").write_text(text)
        plugin = [] if "tinkc" in os.environ.get("TINKC_INSTALLED", "") else ["-p", "tinkc.pytest_plugin"]
        command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-q", "-rA", *options, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    counts = dict((word, int(n)) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout.splitlines()[-1]))
    return counts, done.stdout + done.stderr


class Plugin(unittest.TestCase):
    def test_one_server_serves_the_session(self):
        counts, output = run_pytest(
            "seen = []\n"
            "def test_a(tinker_server): seen.append(tinker_server.base_url)\n"
            "def test_b(tinker_server): assert seen == [tinker_server.base_url]\n"
            "def test_c(tinker_client): assert tinker_client.get_server_capabilities().supported_models[0].model_name == 'nano'\n"
        )
        self.assertEqual(counts, {"passed": 3}, output)

    def test_an_option_names_the_model(self):
        nano = os.environ.get("TINKC_NANO") or "nano"
        counts, output = run_pytest(
            "def test_a(tinker_client):\n"
            "    assert tinker_client.get_server_capabilities().supported_models[0].model_name == 'mine'\n",
            "--tinker-model",
            f"mine={nano}",
        )
        self.assertEqual(counts, {"passed": 1}, output)

    def test_a_model_that_is_missing_is_an_error_with_the_programs_words(self):
        counts, output = run_pytest("def test_a(tinker_server): pass\n", "--tinker-model", "/nowhere/model")
        self.assertEqual(counts, {"error": 1}, output)
        self.assertIn("error: /nowhere/model: not a folder", output)

    def test_workers_of_xdist_have_servers_of_their_own(self):
        counts, output = run_pytest(
            "import os, pathlib, pytest\n"
            "@pytest.mark.parametrize('i', range(4))\n"
            "def test_a(tinker_server, i):\n"
            "    print('url', os.environ['PYTEST_XDIST_WORKER'], tinker_server.base_url)\n",
            "-n",
            "2",
        )
        self.assertEqual(counts, {"passed": 4}, output)
        pairs = set(re.findall(r"url (gw\d) (\S+)", output))
        self.assertEqual(len(pairs), 2, output)
        self.assertEqual(len({url for _, url in pairs}), 2, output)

    def test_a_server_that_dies_fails_the_test_and_not_the_session(self):
        counts, output = run_pytest(
            "import os, signal, threading\n"
            "def test_a(tinker_server):\n"
            "    os.kill(tinker_server.pid, signal.SIGKILL)\n"
            "    threading.Event().wait(60)\n"
            "def test_b(): pass\n"
        )
        self.assertEqual((counts.get("failed"), counts.get("passed")), (1, 1), output)
        self.assertIn("ServerError: the server has ended (ended by signal 9)", output)

    def test_a_call_of_the_sdk_that_waits_ends_with_the_server(self):
        counts, output = run_pytest(
            "import os, signal, threading\n"
            "def test_a(tinker_server, tinker_client):\n"
            "    trainer = tinker_client.create_lora_training_client('nano')\n"
            "    os.kill(tinker_server.pid, signal.SIGSTOP)  # it answers nothing more\n"
            "    threading.Timer(0.2, os.kill, (tinker_server.pid, signal.SIGKILL)).start()\n"
            "    trainer.save_state('never').result(timeout=120)\n"
        )
        self.assertEqual(counts.get("failed"), 1, output)
        self.assertIn("ServerError: the server has ended (ended by signal 9)", output)

    def test_the_marker_refuses_other_machines_and_allows_this_one(self):
        counts, output = run_pytest(
            "import pytest, socket, urllib.request\n"
            "@pytest.mark.tinker_no_network\n"
            "def test_a(tinker_server):\n"
            "    urllib.request.urlopen(urllib.request.Request(tinker_server.base_url + '/api/v1/healthz',\n"
            "                           headers={'X-API-Key': tinker_server.api_key})).read()\n"
            "    for connect in (lambda: socket.create_connection(('192.0.2.1', 80), 1),\n"
            "                    lambda: socket.getaddrinfo('example.org', 80),\n"
            "                    lambda: socket.socket().connect_ex(('192.0.2.1', 80))):\n"
            "        with pytest.raises(ConnectionRefusedError, match='tinker_no_network'):\n"
            "            connect()\n"
            "def test_b(): assert socket.socket.connect.__name__ == 'connect'\n"
        )
        self.assertEqual(counts, {"passed": 2}, output)

    def test_nothing_starts_where_no_fixture_is_used(self):
        counts, output = run_pytest("def test_a(): pass\n", "--tinker-model", "/nowhere/model")
        self.assertEqual(counts, {"passed": 1}, output)


if __name__ == "__main__":
    unittest.main()
