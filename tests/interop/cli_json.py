"""`tinkc` prints the JSON that the Python command prints, byte for byte.

Usage: cli_json.py TINKC MODEL. Runs each command that both have against one `TINKC serve`, first the
Python one (that of the environment this script runs in), then ours under TINKC_COMPAT, and compares
standard output and exit status. What differs from run to run (times, ids, folders) is not touched where
both ask about the same thing; where each has to act on a thing of its own, both texts have its name
replaced by the same function.
"""
import datetime, json, os, re, shutil, subprocess, sys, tempfile, warnings

warnings.simplefilter("ignore")
import python_command
import tinker
from tinker import types
from tinker._version import __version__

TINKC, MODEL = map(os.path.abspath, sys.argv[1:3])
PYTHON = os.path.join(os.path.dirname(sys.executable), "tinker")
NEW = tuple(map(int, __version__.split(".")[:2])) >= (0, 36)
failed = []


class Server:
    def __init__(self, folder):
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as f:
            f.write("tml-cli email=ada@example.org\n")
        os.chmod(keys, 0o600)
        self.process = subprocess.Popen(
            [TINKC, "serve", MODEL, "--port", "0", "--store", os.path.join(folder, "store"), "--auth-token-file", keys,
             "--no-page", "--ready-fd", "1"],
            stdout=subprocess.PIPE, stderr=open(os.path.join(folder, "log"), "w"), text=True,
            env={**os.environ, "HOME": folder, "XDG_CONFIG_HOME": os.path.join(folder, "config")})
        self.url = self.process.stdout.readline().split()[-1]
        self.folder, home = folder, os.path.join(folder, "home")
        os.mkdir(home)
        self.env = {**os.environ, "TINKER_BASE_URL": self.url, "TINKER_API_KEY": "tml-cli", "HOME": home,
                    "TINKER_TELEMETRY": "0", "TINKC_COMPAT": "1" if NEW else __version__, "PYTHONWARNINGS": "ignore"}


def ask_ours(server, args, cwd):
    return subprocess.run([TINKC, *args], env=server.env, cwd=cwd, capture_output=True, text=True, timeout=120)


def ask_theirs(server, args, cwd):
    return python_command.run(PYTHON, args, server.env, cwd, server.folder)


def plain(text, _):
    return text


def same(server, name, args, other=None, normalise=plain, folder=None):
    """other: the arguments for our command where it must act on another thing than the Python one."""
    theirs = ask_theirs(server, ["--format", "json", *args], folder)
    ours = ask_ours(server, ["--format", "json", *(other or args)], folder)
    a, b = normalise(theirs.stdout, args), normalise(ours.stdout, other or args)
    if a == b and theirs.returncode == ours.returncode:
        print(f"ok: {name} ({theirs.returncode}, {len(a)} bytes)", flush=True)
        return
    failed.append(name)
    print(f"FAILED: {name}\n--- Python, {theirs.returncode}\n{a}{theirs.stderr[-600:]}\n--- tinkc, {ours.returncode}\n{b}{ours.stderr[-600:]}", flush=True)


def version(text, _):
    """A release after the newest that we know prints its own number."""
    return text if not NEW else re.sub(r"\d+\.\d+", "N", text, count=1)


def failures(text, _):
    """What went wrong is said in words of each command's own."""
    said = json.loads(text)
    for one in said["failed"]:
        one["error"] = "WORDS"
    return json.dumps(said) if text == json.dumps(json.loads(text)) + "\n" else "not as Python writes it: " + text


def by_name(text, args):
    """Names of the things that an action was given."""
    for i, arg in enumerate(a for a in args if a.startswith("tinker://")):
        text = text.replace(arg, f"PATH{i}").replace(arg.split("/")[-1], f"NAME{i}")
    return text


def prepare(service):
    """Runs and checkpoints of every kind, with metadata, lifetimes and characters that JSON escapes."""
    client = service.create_lora_training_client(base_model=os.path.basename(MODEL), rank=4,
                                                 user_metadata={"who": "é \"quoted\" <tag>", "n": "1"})
    other = service.create_lora_training_client(base_model=os.path.basename(MODEL), rank=8)
    datum = types.Datum(model_input=types.ModelInput.from_ints([5, 6, 7]),
                        loss_fn_inputs={"target_tokens": [6, 7, 8], "weights": [1.0, 1.0, 1.0]})
    client.forward_backward([datum], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
    more = {"user_metadata": {"step": "1", "note": "ü"}} if NEW else {}
    paths = {"state": client.save_state("state", ttl_seconds=7200, **more).result().path,
             "sampler": client.save_weights_for_sampler("sampler", **more).result().path}
    if NEW:
        paths["external"] = client.save_weights_external("external").result().path
        other.save_weights_external("external").result()
    for i in range(6):
        paths[f"gone{i}"] = client.save_weights_for_sampler(f"gone{i}").result().path
    for run_client, key in (client, "c"), (other, "o"):
        for i in range(2):
            run_client.save_state(f"{key}{i}").result()
    return client.model_id, other.model_id, paths


def encrypted_weights(server, folder):
    """What the server encrypts for the SDK is decrypted by our command and by age, to the same files."""
    if not shutil.which("age-keygen"):
        return
    key = os.path.join(folder, "key.txt")
    subprocess.run(["age-keygen", "-o", key], check=True, capture_output=True)
    public = subprocess.run(["age-keygen", "-y", key], check=True, capture_output=True, text=True).stdout.strip()
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-cli")
    client = service.create_lora_training_client(base_model=os.path.basename(MODEL), rank=4)
    path = client.save_weights_external("secret", age_encryption_recipients=[public]).result().path
    for name, options in (("sealed", []), ("opened", ["--age-identity", key])):
        r = ask_ours(server, ["checkpoint", "download", path, "-o", folder, "--name", name, *options], folder)
        if r.returncode:
            failed.append(f"download, {name}: {r.stderr}")
            return
    for name in os.listdir(os.path.join(folder, "sealed")):
        text = subprocess.run(["age", "-d", "-i", key, os.path.join(folder, "sealed", name)], check=True, capture_output=True).stdout
        with open(os.path.join(folder, "opened", name.removesuffix(".age")), "rb") as f:
            if f.read() != text:
                failed.append(f"{name} is decrypted otherwise by age")
    names = sorted(os.listdir(os.path.join(folder, "opened")))
    if names != ["adapter_config.json", "adapter_model.safetensors"]:
        failed.append(f"decrypted files: {names}")
    print("ok: encrypted weights" if not failed else f"FAILED: {failed[-1]}", flush=True)


def check_program(server):
    """The program that was installed is the one whose parts python_command runs."""
    program = subprocess.run([PYTHON, "version"], env=server.env, capture_output=True, text=True, timeout=120)
    part = ask_theirs(server, ["version"], None)
    if (program.returncode, program.stdout, program.stderr) != (part.returncode, part.stdout, part.stderr):
        raise SystemExit(f"FAILED: {program} is not {part}")


def compare(server, folder):
    run_id, other_id, paths = prepare(tinker.ServiceClient(base_url=server.url, api_key="tml-cli"))
    hour = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    window = [(hour + datetime.timedelta(hours=h)).strftime("%Y-%m-%dT%H:00:00Z") for h in (-1, 1)]
    same(server, "version", ["version"], normalise=version)
    same(server, "run list", ["run", "list"])
    same(server, "run list --limit 1", ["run", "list", "--limit", "1"])
    same(server, "run info", ["run", "info", run_id])
    same(server, "run info of another", ["run", "info", other_id])
    same(server, "run info of none", ["run", "info", "nobody:train:0"])
    same(server, "checkpoint list", ["checkpoint", "list"])
    same(server, "checkpoint list --limit 2", ["checkpoint", "list", "--limit", "2"])
    same(server, "checkpoint list --run-id", ["checkpoint", "list", "--run-id", run_id])
    for key in paths:
        if not key.startswith("gone"):
            same(server, f"checkpoint info, {key}", ["checkpoint", "info", paths[key]])
    same(server, "checkpoint info of none", ["checkpoint", "info", paths["state"] + "x"])
    same(server, "checkpoint info of a wrong path", ["checkpoint", "info", "tinker://x"])
    for verb in "publish", "unpublish":
        same(server, f"checkpoint {verb}", ["checkpoint", verb, paths["gone0"]], ["checkpoint", verb, paths["gone1"]], by_name)
    same(server, "checkpoint set-ttl", ["checkpoint", "set-ttl", paths["state"], "--ttl", "3600"])
    same(server, "checkpoint set-ttl --remove", ["checkpoint", "set-ttl", paths["state"], "--remove"])
    same(server, "checkpoint set-ttl of nothing", ["checkpoint", "set-ttl", paths["state"]])
    same(server, "checkpoint info after it", ["checkpoint", "info", paths["state"]])
    same(server, "checkpoint delete", ["checkpoint", "delete", "-y", paths["gone0"]], ["checkpoint", "delete", "-y", paths["gone1"]], by_name)
    same(server, "checkpoint delete of two", ["checkpoint", "delete", "-y", paths["gone2"], paths["gone3"]],
         ["checkpoint", "delete", "-y", paths["gone4"], paths["gone5"]], by_name)
    same(server, "checkpoint delete of none", ["checkpoint", "delete", "-y", paths["gone0"]], normalise=failures)
    same(server, "checkpoint delete --run-id", ["checkpoint", "delete", "-y", "--run-id", "nobody:train:0"])
    for kind in ("external", "sampler") if NEW else ("sampler", "state"):  # newer releases refuse samplers
        same(server, f"checkpoint download, {kind}", ["checkpoint", "download", paths[kind], "--output", "theirs"],
             ["checkpoint", "download", paths[kind], "--output", "ours"],
             lambda text, args: text.replace(args[-1] + "/", "FOLDER/"), folder)
    same(server, "billing usage", ["billing", "usage", *window])
    same(server, "billing usage of nothing", ["billing", "usage", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"])
    same(server, "billing usage --csv -", ["billing", "usage", *window, "--csv", "-"])
    same(server, "billing usage --sessions-csv -", ["billing", "usage", *window, "--sessions-csv", "-"])
    same(server, "session export-trace", ["session", "export-trace", run_id.split(":")[0], "--url-only"])
    if NEW:
        same(server, "billing checkpoint-storage", ["billing", "checkpoint-storage"])
        same(server, "billing checkpoint-storage of a project", ["billing", "checkpoint-storage", "--project-id", "none"])
        same(server, "billing checkpoint-storage --csv -", ["billing", "checkpoint-storage", "--csv", "-"])
        same(server, "model list", ["model", "list"])
        same(server, "model list SUBSTRING", ["model", "list", os.path.basename(MODEL)[:3].upper()])
        same(server, "model list of nothing", ["model", "list", "no-such-model"])
        same(server, "auth whoami", ["auth", "whoami"])
        same(server, "checkpoint delete --type external",
             ["checkpoint", "delete", "-y", "--run-id", run_id, "--type", "external"],
             ["checkpoint", "delete", "-y", "--run-id", other_id, "--type", "external"],
             lambda text, args: text.replace(args[4], "RUN"))


def main():
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        os.environ.update(server.env)  # what modules read when they are loaded
        try:
            check_program(server)
            compare(server, folder)
            if NEW:
                encrypted_weights(server, folder)
        finally:
            server.process.terminate()
            server.process.wait()
    print(f"{len(failed)} differ" + (": " + ", ".join(failed) if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
