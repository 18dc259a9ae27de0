"""Black-box tests of `tinkc pull`, models by hub name and `checkpoint push-hf`, against a hub of our own.

    hub_test.py BUILD [GROUP...]
"""
import hashlib, json, os, pathlib, pty, random, re, select, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "support/client"))
import hub_server

build = pathlib.Path(sys.argv[1]).resolve()
root = here.parent.parent
wanted = sys.argv[2:]
passed, failed = 0, []
home = tempfile.mkdtemp(prefix="tinkc-hub-test-")
nano = root / "models" / "nano"


def check(name, condition, detail=""):
    global passed
    if condition:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED {name}: {detail}")


class World:
    """A hub, a cache of its own, and the command in between."""

    def __init__(self):
        self.hub = hub_server.Hub()
        self.home = tempfile.mkdtemp(dir=home)
        self.cache = os.path.join(self.home, "hf", "hub")
        self.env = {"PATH": f"{build}:{os.environ['PATH']}", "HOME": self.home, "LC_ALL": "C.UTF-8",
                    "TMPDIR": self.home, "HF_ENDPOINT": self.hub.url, "HF_HOME": os.path.join(self.home, "hf")}
        for name in ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "TINKC_MUTANT", "TINKC_MUTANT_MAP"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hub.close()

    def start(self, *args, **more):
        env = dict(self.env, **more.pop("env", {}))
        return subprocess.Popen([build / "tinkc", *args], env={k: v for k, v in env.items() if v is not None},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=self.home, **more)

    def run(self, *args, timeout=120, **more):
        p = self.start(*args, **more)
        out, err = p.communicate(timeout=timeout)
        return subprocess.CompletedProcess(args, p.returncode, out, err)

    def repo(self, name):
        return pathlib.Path(self.cache) / ("models--" + name.replace("/", "--"))

    def snapshot(self, name, commit):
        """{path: bytes} of what Python would find there."""
        top, found = self.repo(name) / "snapshots" / commit, {}
        for path in top.rglob("*"):
            if path.is_file():
                found[str(path.relative_to(top))] = path.read_bytes()
        return found


def some_bytes(n, seed):
    return random.Random(seed).randbytes(n)


def small_model():
    return {"config.json": b'{"model_type":"llama"}', "tokenizer.json": b"{}" * 20, "README.md": b"# hi\n",
            "model.safetensors": some_bytes(300_000, 1), "pytorch_model.bin": some_bytes(5000, 2),
            "sub/deep/er.txt": b"deep", "empty.txt": b"", "a b#c.txt": b"odd name", "original/x.pth": b"x" * 9000}


# ---- pull ----

def pull_timeout():
    """A hub that accepts and never answers: --timeout ends the command, with its own exit code."""
    with World() as w, socket.create_server(("127.0.0.1", 0)) as silent:
        r = w.run("pull", "org/model", "--timeout", "1",
                  env={"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        check("pull: --timeout", r.returncode == 124 and "--timeout has run out" in r.stderr, (r.returncode, r.stderr))


def pull_layout():
    with World() as w:
        files = small_model()
        commit = w.hub.add("org/model", files)
        r = w.run("pull", "org/model", "--json")
        check("pull works", r.returncode == 0, r.stderr)
        v = json.loads(r.stdout or "{}")
        kept = {p: d for p, d in files.items() if p not in ("pytorch_model.bin", "original/x.pth")}
        check("pull: the snapshot has the right bytes", w.snapshot("org/model", commit) == kept,
              sorted(w.snapshot("org/model", commit)))
        check("pull: JSON", v.get("commit") == commit and v.get("repo") == "org/model"
              and {f["name"] for f in v["files"]} == set(kept)
              and v["downloaded_bytes"] == sum(map(len, kept.values())), r.stdout)
        check("pull: reference without a line end", (w.repo("org/model") / "refs/main").read_text() == commit)
        for path, data in kept.items():
            link = w.repo("org/model") / "snapshots" / commit / path
            name = hub_server.sha256(data) if hub_server.is_lfs(path, len(data)) else hub_server.git_sha1(data)
            up = "../" * (2 + path.count("/"))
            check(f"pull: {path} is a link to its blob", link.is_symlink() and os.readlink(link) == f"{up}blobs/{name}",
                  os.readlink(link) if link.is_symlink() else "no link")
        check("pull: nothing incomplete stays", not list(w.repo("org/model").rglob("*.incomplete")))
        before = len(w.hub.log)
        r = w.run("pull", "org/model", "--json")
        check("pull again downloads nothing", r.returncode == 0 and json.loads(r.stdout)["downloaded_bytes"] == 0
              and not any("resolve" in l["line"] for l in w.hub.log[before:]), r.stdout)
        link = w.repo("org/model") / "snapshots" / commit / "config.json"
        link.unlink(), link.write_bytes(b"another")
        r = w.run("pull", "org/model")
        check("pull again: what is not the commit's makes room", r.returncode == 0 and w.snapshot("org/model", commit) == kept, r.stderr)
        for blob in (w.repo("org/model") / "blobs").iterdir():
            blob.rename(f"{blob}.incomplete")
            with open(f"{blob}.incomplete", "ab") as f:
                f.write(b"too much")
        r = w.run("pull", "org/model")
        check("pull again: more than a file has is not taken for its beginning", r.returncode == 0 and w.snapshot("org/model", commit) == kept, r.stderr)
        r = w.run("pull", "org/model", "--all", "--json")
        check("pull --all", w.snapshot("org/model", commit) == files, r.stderr)


def pull_choice():
    with World() as w:
        commit = w.hub.add("org/model", small_model())
        r = w.run("pull", "org/model", "--dry-run", "--json")
        v = json.loads(r.stdout)
        check("dry run downloads nothing", r.returncode == 0 and not w.repo("org/model").exists()
              and v["missing_bytes"] == v["total_bytes"] > 0, r.stdout)
        r = w.run("pull", "org/model", "--tokenizer-only")
        check("--tokenizer-only", set(w.snapshot("org/model", commit)) == {"tokenizer.json", "config.json"}, r.stderr)
        with World() as x:
            commit = x.hub.add("org/model", small_model())
            x.run("pull", "org/model", "--include", "*.txt", "--include", "sub/", "--exclude", "empty*")
            check("--include, --exclude", set(x.snapshot("org/model", commit)) == {"sub/deep/er.txt", "a b#c.txt"},
                  set(x.snapshot("org/model", commit)))
            r = x.run("pull", "org/model", "--include", "nothing*")
            check("a pattern that matches nothing is an error", r.returncode == 3 and "no file" in r.stderr, r.stderr)
        r = w.run("pull", "org/model", "--all", "--tokenizer-only")
        check("--all with --tokenizer-only", r.returncode == 2, r.stderr)


def pull_revisions():
    with World() as w:
        w.hub.add("org/model", {"config.json": b"{}"})
        old = w.hub.add("org/model", {"config.json": b"old"}, branch="refs/pr/7")
        new = w.hub.add("org/model", {"config.json": b"new"})
        for rev, commit, text in (("refs/pr/7", old, b"old"), (old, old, b"old"), ("main", new, b"new")):
            r = w.run("pull", f"org/model@{rev}", "--json")
            check(f"revision {rev}", r.returncode == 0 and json.loads(r.stdout)["commit"] == commit
                  and w.snapshot("org/model", commit)["config.json"] == text, r.stderr)
        check("reference with slashes", (w.repo("org/model") / "refs/refs/pr/7").read_text() == old)
        check("a commit is not a reference", not (w.repo("org/model") / "refs" / old).exists())
        r = w.run("pull", "org/model@nope")
        check("unknown revision", r.returncode == 3 and "no such revision" in r.stderr and "404" in r.stderr, r.stderr)
        r = w.run("pull", "org/model@../../x")
        check("revision that is a path", r.returncode == 2 and "not the name of a revision" in r.stderr, r.stderr)


def pull_pages():
    with World() as w:
        w.hub.page = 3
        files = {f"f{i:02d}.txt": b"%d" % i for i in range(10)}
        commit = w.hub.add("org/model", files)
        w.run("pull", "org/model")
        check("a list of several pages", w.snapshot("org/model", commit) == files)
        check("all pages were asked for", w.hub.count("GET /api/models/org/model/tree") == 4)


def pull_faults():
    with World() as w:
        data = some_bytes(700_000, 3)
        commit = w.hub.add("org/model", {"model.safetensors": data, "config.json": b"{}"})
        for _ in range(2):
            w.hub.fault(r"/objects/", cut=200_000)
        w.hub.fault("/tree/", status=503, headers={"Retry-After": "1"})
        w.hub.fault("/revision/", status=429, headers={"Retry-After-Ms": "5"})
        w.hub.fault("config.json", silent=True)
        r = w.run("pull", "org/model", "--json")
        check("cut, 503, 429 and resets are survived", r.returncode == 0
              and w.snapshot("org/model", commit)["model.safetensors"] == data, r.stderr)
        ranges = [l["headers"].get("Range") for l in w.hub.log if "/objects/" in l["line"]]
        check("cut transfers continue with Range", ranges == [None, "bytes=200000-", "bytes=400000-"], ranges)
        check("no byte twice", json.loads(r.stdout)["downloaded_bytes"] == len(data) + 2, r.stdout)
    with World() as w:
        w.hub.ranges = False
        commit = w.hub.add("org/model", {"model.safetensors": data})
        w.hub.fault("/objects/", cut=300_000)
        r = w.run("pull", "org/model")
        check("a server without ranges", w.snapshot("org/model", commit).get("model.safetensors") == data, r.stderr)
    with World() as w:
        commit = w.hub.add("org/model", {"model.safetensors": data})
        w.hub.fault("/objects/", times=1, data=b"x" * len(data))
        r = w.run("pull", "org/model")
        check("wrong bytes are refused", r.returncode != 0 and "checksum mismatch" in r.stderr
              and not w.snapshot("org/model", commit), r.stderr)
        check("wrong bytes leave no reference", not (w.repo("org/model") / "refs/main").exists())
        r = w.run("pull", "org/model")
        check("and do not stay", r.returncode == 0, r.stderr)
        w.hub.add("org/long", {"model.safetensors": data[:5000]})
        w.hub.fault("/objects/", times=1, data=data[:5000] + b"more")
        r = w.run("pull", "org/long")
        check("too many bytes are refused", r.returncode != 0 and "more bytes" in r.stderr, r.stderr)


def pull_refusals():
    with World() as w:
        w.hub.add("org/model", {"config.json": b"{}"})
        w.hub.add("org/gated", {"config.json": b"{}"})
        w.hub.gated = ("org/gated",)
        r = w.run("pull", "org/nope")
        check("404", r.returncode == 3 and "not found on the hub: org/nope (HTTP 404)" in r.stderr, r.stderr)
        r = w.run("pull", "org/gated")
        check("403 gated", r.returncode == 4 and "restricted" in r.stderr and f"{w.hub.url}/org/gated" in r.stderr,
              (r.returncode, r.stderr))
        w.hub.fault("/revision/", times=99, status=500)
        r = w.run("--retry-for", "0", "pull", "org/model")
        check("500", r.returncode == 9 and "HTTP 500" in r.stderr, (r.returncode, r.stderr))
        check("--retry-for 0 tries once", w.hub.count("GET /api/models/org/model/revision") == 1)
        w.hub.faults.clear()
        w.hub.token = "hf_secret"
        r = w.run("pull", "org/model")
        check("401 without a token", r.returncode == 4 and "HF_TOKEN" in r.stderr, (r.returncode, r.stderr))
        r = w.run("pull", "org/model", env={"HF_TOKEN": "hf_wrong"})
        check("401 with a wrong token", r.returncode == 4 and "does not accept the token" in r.stderr
              and "hf_wrong" not in r.stderr and "hint: the token: HF_TOKEN, or hf_token in the configuration\n" in r.stderr, r.stderr)
        r = w.run("pull", "org/model", env={"HF_TOKEN": "hf_secret"})
        check("a token opens it", r.returncode == 0, r.stderr)
        for name in ("../x", "a/b/c", "a b", "x/..", "", "a--b/c"):
            r = w.run("pull", name)
            check(f"name '{name}'", r.returncode == 2, (r.returncode, r.stderr))
    with World() as w:
        w.hub.token = "hf_secret"
        commit = w.hub.add("org/model", {"model.safetensors": some_bytes(9000, 4)})
        r = w.run("pull", "org/model", env={"HF_TOKEN": "hf_secret"})
        leaks = [l["line"] for l in w.hub.log if l["store"] and "Authorization" in l["headers"]]
        check("the token does not follow redirects to another origin", r.returncode == 0 and not leaks, leaks)
        os.makedirs(os.path.join(w.home, "hf"), exist_ok=True)
        pathlib.Path(w.home, "hf", "token").write_text("hf_secret\n")
        r = w.run("pull", "org/model")
        check("token from its file", r.returncode == 0, r.stderr)


def pull_hostile():
    with World() as w:
        for path in ("../../escape", "/etc/x", "a/../../b", "a//b", "./x", "a\\b", "x\ny"):
            name = f"org/bad{hashlib.sha1(path.encode()).hexdigest()[:6]}"
            w.hub.add(name, {path: b"data", "config.json": b"{}"})
            r = w.run("pull", name)
            check(f"path {path!r} from the hub", r.returncode != 0 and "unsafe path" in r.stderr, r.stderr)
        check("nothing escaped", not os.path.exists(os.path.join(w.home, "escape")))
        w.hub.add("org/huge", {"config.json": b"{}"})
        w.hub.huge = ("model.safetensors", 1 << 55)
        r = w.run("pull", "org/huge")
        check("disk space is checked first", r.returncode != 0 and "not enough disk space" in r.stderr
              and w.hub.count("resolve") == 0, r.stderr)


def pull_offline():
    with World() as w:
        w.hub.add("org/model", {"config.json": b"{}"})
        dead = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        r = w.run("--retry-for", "0", "pull", "org/model", env=dead)
        check("no network", r.returncode == 8 and "could not be reached" in r.stderr and "HTTP" not in r.stderr, r.stderr)
        for how in (["--offline", "pull", "org/model"],):
            r = w.run(*how)
            check("--offline", r.returncode != 0 and "switched off" in r.stderr, r.stderr)
        r = w.run("pull", "org/model", env={"HF_HUB_OFFLINE": "1"})
        check("HF_HUB_OFFLINE", r.returncode != 0 and "switched off" in r.stderr, r.stderr)
        check("offline asks nobody", not w.hub.log, w.hub.log)


def partial_size(w, name):
    total = 0
    for p in w.repo(name).glob("blobs/*.incomplete"):
        try:
            total += p.stat().st_size
        except FileNotFoundError:  # complete by now, under another name
            pass
    return total


def pull_resume():
    with World() as w:
        data = some_bytes(6_000_000, 5)
        commit = w.hub.add("org/model", {"model.safetensors": data, "config.json": b"{}"})
        for sig, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
            w.hub.pause = 0.02
            before = partial_size(w, "org/model")
            p = w.start("pull", "org/model")
            while partial_size(w, "org/model") < before + 200_000 and p.poll() is None:
                time.sleep(0.005)
            p.send_signal(sig)
            _, err = p.communicate(timeout=60)
            check(f"{sig.name} ends it", p.returncode == code, (p.returncode, err))
            if code > 0:
                check(f"{sig.name}: says how to continue", "continues where it stopped" in err, err)
            check(f"{sig.name} leaves what came", before < partial_size(w, "org/model") < len(data))
            check(f"{sig.name} leaves no snapshot", not w.snapshot("org/model", commit))
        have = partial_size(w, "org/model")
        w.hub.pause = 0
        before = len(w.hub.log)
        r = w.run("pull", "org/model", "--json")
        ranges = [l["headers"].get("Range") for l in w.hub.log[before:] if "/objects/" in l["line"]]
        check("the rest is downloaded", ranges == [f"bytes={have}-"]
              and w.snapshot("org/model", commit)["model.safetensors"] == data, (ranges, have, r.stderr))


def pull_twice():
    with World() as w:
        data = some_bytes(2_000_000, 6)
        commit = w.hub.add("org/model", {"model.safetensors": data, "config.json": b"{}", "b.safetensors": data[:9000]})
        w.hub.pause = 0.005
        both = [w.start("pull", "org/model", "--json") for _ in range(3)]
        ends = [p.communicate(timeout=120) for p in both]
        moved = sum(json.loads(out)["downloaded_bytes"] for out, _ in ends)
        check("pulls at once all succeed", all(p.returncode == 0 for p in both), ends)
        check("and download each byte once", moved == len(data) + 9000 + 2, moved)
        check("and the files are right", w.snapshot("org/model", commit)["model.safetensors"] == data)


# ---- models by name ----

def nano_files():
    return {str(p.relative_to(nano)): p.read_bytes() for p in nano.rglob("*") if p.is_file()}


def model_by_name():
    with World() as w:
        w.hub.add("org/nano", nano_files())
        ask = ["sample", "-m", "org/nano", "hello", "--max-tokens", "2", "--temperature", "0"]
        r = w.run("--retry-for", "0", *ask, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
        check("-m without a network", r.returncode == 8 and "could not be reached" in r.stderr and "404" not in r.stderr,
              (r.returncode, r.stderr))
        r = w.run(*ask)
        check("-m without --yes names the command", r.returncode == 3 and "tinkc pull org/nano" in r.stderr
              and "is not on this machine" in r.stderr and w.hub.count("resolve") == 0, (r.returncode, r.stderr))
        r = w.run(*[a if a != "org/nano" else "org/none" for a in ask])
        check("-m with a name that the hub does not have", r.returncode == 3 and "not found on the hub" in r.stderr, r.stderr)
        r = w.run("--yes", *ask)
        check("-m --yes pulls and samples", r.returncode == 0 and r.stdout, r.stderr)
        before = len(w.hub.log)
        r = w.run(*ask, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
        check("then it is found without the hub", r.returncode == 0 and len(w.hub.log) == before, r.stderr)
        shard = next((w.repo("org/nano") / "snapshots").glob("*/model-00002*"))
        shard.unlink()
        r = w.run("--offline", *ask)
        check("a missing shard is seen", r.returncode == 3 and "model-00002-of-00002.safetensors is missing" in r.stderr,
              r.stderr)


def model_prompt():
    with World() as w:
        w.hub.add("org/nano", nano_files())
        for answer, code in (("n", 11), ("y", 0)):
            pid, fd = pty.fork()
            if pid == 0:
                os.chdir(w.home)
                os.execve(build / "tinkc", ["tinkc", "sample", "-m", "org/nano", "hello", "--max-tokens", "2"], w.env)
            text = b""
            while b"[y/N]" not in text:
                text += os.read(fd, 4096)
            check("the question names the size", b"Pull it from" in text and b" MB)?" in text, text)
            os.write(fd, answer.encode() + b"\n")
            try:
                while os.read(fd, 4096):
                    pass
            except OSError:
                pass
            _, status = os.waitpid(pid, 0)
            check(f"answer {answer}", os.waitstatus_to_exitcode(status) == code, status)
            os.close(fd)


# ---- push ----

def adapter_folder(w, seed=7, size=400_000):
    folder = pathlib.Path(w.home) / f"adapter{seed}"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type":"LORA","r":4,"base_model_name_or_path":"org/base"}')
    (folder / "adapter_model.safetensors").write_bytes(some_bytes(size, seed))
    (folder / "checkpoint_complete").write_text("")
    (folder / "more").mkdir()
    (folder / "more" / "notes.txt").write_text("a note")
    return folder


def head(w, name, branch="main"):
    repo = w.hub.repos[name]
    return repo.commits[repo.branches[branch]]


def push_adapter():
    with World() as w:
        w.hub.token = "hf_write"
        env = {"HF_TOKEN": "hf_write"}
        folder = adapter_folder(w)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/adapter", "--commit-message", "first", "--json", env=env)
        check("push works", r.returncode == 0, r.stderr)
        v, files = json.loads(r.stdout or "{}"), head(w, "me/adapter")
        check("push: private by default", w.hub.repos["me/adapter"].private)
        check("push: files", set(files) == {"adapter_config.json", "adapter_model.safetensors", "README.md",
                                            "more/notes.txt"}
              and files["adapter_model.safetensors"] == (folder / "adapter_model.safetensors").read_bytes(), sorted(files))
        check("push: JSON", v.get("repo_id") == "me/adapter" and v.get("revision") == "main" and v.get("public") is False
              and v.get("commit_url", "").startswith(w.hub.url) and v["commit"] == w.hub.repos["me/adapter"].branches["main"],
              r.stdout)
        card = files["README.md"].decode()
        check("push: model card", card.startswith("---\n") and 'base_model: "org/base"' in card
              and "library_name: peft" in card and "LoRA rank: 4" in card and '"me/adapter"' in card, card)
        check("push: the source is untouched", not (folder / "README.md").exists())
        lines = [json.loads(l) for e in w.hub.log if "/commit/" in e["line"] for l in e["body"].splitlines()]
        check("push: commit message", lines[0]["value"]["summary"] == "first", lines[0])
        asked = json.loads(next(e["body"] for e in w.hub.log if "repos/create" in e["line"]))
        check("push: private in the words of old and new hubs", asked["private"] is True
              and asked["visibility"] == "private", asked)
        leaks = [e["line"] for e in w.hub.log if e["store"] and "Authorization" in e["headers"]]
        check("push: signed addresses get no token", not leaks, leaks)
        commits, before = len(w.hub.repos["me/adapter"].commits), len(w.hub.log)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/adapter", env=env)
        check("push again makes no commit and sends nothing", r.returncode == 0
              and len(w.hub.repos["me/adapter"].commits) == commits
              and not any("PUT" in e["line"] for e in w.hub.log[before:]), r.stderr)
        (folder / "more" / "notes.txt").write_text("changed")
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/adapter", "--revision", "v/2", env=env)
        check("push to a branch", r.returncode == 0 and head(w, "me/adapter", "v/2")["more/notes.txt"] == b"changed"
              and head(w, "me/adapter")["more/notes.txt"] == b"a note", r.stderr)
        last = [json.loads(l)["value"].get("path") for l in w.hub.log[-1]["body"].splitlines()]
        check("push sends only what differs", last == [None, "more/notes.txt"], last)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/adapter", "--create-pr", "--json", env=env)
        check("push as a pull request", "discussions" in json.loads(r.stdout)["commit_url"], r.stdout + r.stderr)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/open", "--public", "--allow-pattern", "*.json",
                  "--no-model-card", env=env)
        check("push --public --allow-pattern", not w.hub.repos["me/open"].private
              and set(head(w, "me/open")) == {"adapter_config.json"}, sorted(head(w, "me/open")))
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/dry", "--dry-run", "--json")
        check("push --dry-run", r.returncode == 0 and "me/dry" not in w.hub.repos
              and any(f["name"] == "README.md" for f in json.loads(r.stdout)["files"]), r.stderr)
        pathlib.Path(w.home, "tok").write_text("hf_write\n")
        r = w.run("checkpoint", "push-hf", folder, "-r", "own", "--hf-token-file", "tok", "--json")
        check("push: a name without an owner is the user's", json.loads(r.stdout)["repo_id"] == "tester/own", r.stderr)


def push_refusals():
    with World() as w:
        w.hub.token = "hf_write"
        env = {"HF_TOKEN": "hf_write"}
        folder = adapter_folder(w)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/x")
        check("push without a token", r.returncode == 4 and "HF_TOKEN" in r.stderr and not w.hub.log, r.stderr)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/x", env={"HF_TOKEN": "hf_bad"})
        check("push with a wrong token", r.returncode == 4 and "hf_bad" not in r.stderr, r.stderr)
        for user in ("", "u" * 128, "a/b", None):
            w.hub.user = user
            r = w.run("checkpoint", "push-hf", folder, "-r", "own", env=env)
            check(f"push: {str(user):.9} is not a user", r.returncode in (2, 9) and not any(n.endswith("own") for n in w.hub.repos), r)
        check("the hint is about the hub", "hint: is HF_ENDPOINT the address of a hub?\n" in r.stderr, r.stderr)
        w.hub.user = "tester"
        r = w.run("checkpoint", "push-hf", folder, env=env)
        check("push without a name", r.returncode == 2 and "which repository" in r.stderr, r.stderr)
        r = w.run("checkpoint", "push-hf", w.home + "/hf", "-r", "me/x", env=env)
        check("push of nothing", r.returncode != 0, r.stderr)
        r = w.run("--retry-for", "0", "checkpoint", "push-hf", folder, "-r", "me/x",
                  env=dict(env, HF_ENDPOINT="http://127.0.0.1:9"))
        check("push without a network", r.returncode == 8 and "could not be reached" in r.stderr, r.stderr)
        real = hub_server.Handler.create

        def public_anyway(self, body, query):
            real(self, body=json.dumps(dict(json.loads(body), private=False, visibility="public")).encode(), query=query)

        hub_server.Handler.create = public_anyway
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/leak", env=env)
        hub_server.Handler.create = real
        check("push stops at a hub that ignores 'private'", r.returncode != 0 and "made public" in r.stderr
              and not head(w, "me/leak"), r.stderr)
        w.hub.fault("/upload/", times=1, status=403)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/x", env=env)
        check("push: a refused upload makes no commit", r.returncode == 4 and not head(w, "me/x"), r.stderr)


def push_large():
    with World() as w:
        w.hub.token, w.hub.multipart_from = "hf_write", 100_000
        env = {"HF_TOKEN": "hf_write"}
        folder = adapter_folder(w, 8, 64 * 1024 * 9 + 77)
        data = (folder / "adapter_model.safetensors").read_bytes()
        w.hub.fault("/part/.*/3$", status=500)
        w.hub.fault("/part/.*/4$", silent=True)
        w.hub.fault("/complete/", status=503)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/big", env=env)
        check("multipart with faults", r.returncode == 0 and head(w, "me/big")["adapter_model.safetensors"] == data, r.stderr)
        check("multipart: notes are gone, files stay", not list(pathlib.Path(w.cache, ".uploads").iterdir())
              and (folder / "adapter_model.safetensors").read_bytes() == data)
    with World() as w:  # parts, completion, verification, commit; what was done is remembered until all of it was
        w.hub.token, w.hub.multipart_from = "hf_write", 100_000
        env, notes = {"HF_TOKEN": "hf_write"}, pathlib.Path(w.cache, ".uploads")
        folder = adapter_folder(w, 20, 64 * 1024 * 2 + 1)

        def push():
            before = len(w.hub.log)
            r = w.run("checkpoint", "push-hf", folder, "-r", "me/big", "-j", "1", env=env)
            found = [re.search("/part/.*/(\\d+)|/(complete|lfs-verify|commit)", e["line"]) for e in w.hub.log[before:]]
            return r, " ".join(m[1] or m[2] for m in found if m)

        w.hub.fault("lfs-verify", status=404)
        r, asked = push()
        check("push: what the hub cannot verify is not committed", r.returncode == 3 and asked == "1 2 3 complete lfs-verify"
              and not head(w, "me/big"), (asked, r.stderr))
        note, = notes.iterdir()
        w.hub.objects.clear()  # else the hub says that it has the file
        r, asked = push()
        check("push: completed again with the parts that are there", r.returncode == 0
              and asked == "complete lfs-verify commit" and not note.exists(), (asked, r.stderr))
        for age, parts in ((11, "3"), (13, "1 2 3")):  # hours; addresses of parts expire
            w.hub.objects.clear()
            folder = adapter_folder(w, age, 64 * 1024 * 2 + 1)
            w.hub.fault("/part/.*/3$", status=403)
            r, asked = push()
            check("push: a part that is refused ends it", r.returncode == 4 and asked == "1 2 3", (asked, r.stderr))
            for note in notes.iterdir():
                os.utime(note, (time.time() - age * 3600,) * 2)
            w.hub.fault("lfs-verify", status=503)
            r, asked = push()
            check(f"push: parts sent {age} hours ago", r.returncode == 0
                  and asked == f"{parts} complete lfs-verify lfs-verify commit", (asked, r.stderr))
    with World() as w:
        w.hub.token, w.hub.multipart_from, w.hub.verifies_elsewhere = "hf_write", 100_000, True
        r = w.run("checkpoint", "push-hf", adapter_folder(w, 7, 64 * 1024 * 3), "-r", "me/big", env=env)
        asked = [e for e in w.hub.log if "lfs-verify" in e["line"]]
        check("an origin that verifies for the hub gets no token", r.returncode == 0 and asked
              and not any("Authorization" in e["headers"] for e in asked), (asked, r.stderr))
    with World() as w:  # stopped in the middle, by a part that does not get through
        w.hub.token, w.hub.multipart_from = "hf_write", 100_000
        folder = adapter_folder(w, 9, 64 * 1024 * 9 + 77)
        data = (folder / "adapter_model.safetensors").read_bytes()
        w.hub.fault("/part/.*/7$", times=1000, status=500)
        p = w.start("--retry-for", "5m", "checkpoint", "push-hf", folder, "-r", "me/big", "-j", "1", env=env)
        while w.hub.count("/part/.*/7$") < 2 and p.poll() is None:
            time.sleep(0.01)
        p.kill()
        p.communicate()
        w.hub.faults.clear()
        before = len(w.hub.log)
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/big", env=env)
        parts = sorted(int(e["line"].rsplit("/", 1)[1]) for e in w.hub.log[before:] if "PUT /part/" in e["line"])
        check("a killed push continues at the part", r.returncode == 0 and parts == [7, 8, 9, 10]
              and head(w, "me/big")["adapter_model.safetensors"] == data, (parts, r.stderr))
    with World() as w:  # the same, but the old addresses have expired
        w.hub.token, w.hub.multipart_from = "hf_write", 100_000
        folder = adapter_folder(w, 10, 64 * 1024 * 5)
        w.hub.fault("/part/.*/3$", times=1000, status=500)
        p = w.start("--retry-for", "5m", "checkpoint", "push-hf", folder, "-r", "me/big", "-j", "1", env=env)
        while w.hub.count("/part/.*/3$") < 2 and p.poll() is None:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate()
        check("push: SIGINT", p.returncode == 130 and "only what is missing" in err, (p.returncode, err))
        w.hub.faults.clear()
        w.hub.uploads.clear()
        w.hub.uploads["taken"] = {}
        r = w.run("checkpoint", "push-hf", folder, "-r", "me/big", env=env)
        check("push: expired addresses are asked for again", r.returncode == 0, r.stderr)


def push_trained():
    with World() as w:
        w.hub.token = "hf_write"
        env = {"HF_TOKEN": "hf_write"}
        rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}] * 4
        pathlib.Path(w.home, "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        r = w.run("train", "sft", "d.jsonl", "--lora-rank", "2", "--batch-size", "4", "--log-dir", "run", timeout=300)
        check("a short training", r.returncode == 0, r.stderr[-600:])
        w.run("checkpoint", "download", json.loads(pathlib.Path(w.home, "run/checkpoints.jsonl").read_text()
              .splitlines()[-1])["sampler_path"], "-o", "plain", "--flat")
        raw = next(pathlib.Path(w.home, "plain").rglob("adapter_model.safetensors")).read_bytes()
        check("saved adapters of a tied model have the service's names", b"unembed_tokens" in raw[:200_000])
        r = w.run("checkpoint", "push-hf", "run", "--json", env=env)
        v = json.loads(r.stdout or "{}")
        check("push of a log directory: derived names", r.returncode == 0
              and v["repo_id"].startswith("tester/tinker-nano-") and v["revision"].startswith("sampler_weights-"),
              r.stdout + r.stderr)
        if r.returncode == 0:
            files = head(w, v["repo_id"], v["revision"])
            check("push of a log directory: files", {"adapter_config.json", "adapter_model.safetensors", "README.md"}
                  <= set(files) and "checkpoint_complete" not in files
                  and v["checkpoint_path"] in files["README.md"].decode(), sorted(files))
            text = files["adapter_model.safetensors"][:200_000]
            check("push writes PEFT's names", b"lm_head" in text and b"unembed_tokens" not in text
                  and b"lm_head" in files["adapter_config.json"])
            r = w.run("checkpoint", "push-hf", "run", "-r", v["repo_id"], "--revision", v["revision"], env=env)
            check("push of the same checkpoint again", r.returncode == 0, r.stderr)
            repo = w.hub.repos[v["repo_id"]]
            repo.commit(dict(files, **{"README.md": b"tinker://other/sampler_weights/x"}), v["revision"])
            r = w.run("checkpoint", "push-hf", "run", "-r", v["repo_id"], "--revision", v["revision"], env=env)
            check("a repository with another checkpoint is refused", r.returncode == 5 and "different checkpoint" in r.stderr,
                  r.stderr)
            w.hub.gated = (v["repo_id"],)
            w.hub.log.clear()
            r = w.run("checkpoint", "push-hf", "run", "-r", v["repo_id"], "--revision", v["revision"], env=env)
            check("a repository that cannot be read is not written to", r.returncode == 4 and "restricted" in r.stderr
                  and not any(l["line"].startswith("POST") for l in w.hub.log), r.stderr + str([l["line"] for l in w.hub.log]))
        r = w.run("checkpoint", "push-hf", "run", "-r", "me/merged", "--merged", "--base", "nano", env=env, timeout=300)
        check("push --merged", r.returncode == 0 and "config.json" in head(w, "me/merged")
              and "library_name: transformers" in head(w, "me/merged")["README.md"].decode()
              and "adapter_model.safetensors" not in head(w, "me/merged"), r.stderr)
        check("nothing stays in the temporary folder", not [n for n in os.listdir(w.home) if n.startswith("tinkc-push")])


# ---- export ----

def read_gguf(path):
    """(keys, {name: (type, shape, bytes)}) of a GGUF file, with only struct."""
    data, at = pathlib.Path(path).read_bytes(), 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("IQ")
            return [value(inner) for _ in range(n)]
        return take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    magic, version, n_tensors, n_keys = take("4sIQQ")
    assert (magic, version) == (b"GGUF", 3), (magic, version)
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name, dims = text(), take("I")
        shape = [take("Q") for _ in range(dims)]
        kind, offset = take("IQ")
        infos.append((name, kind, shape, offset))
    start, tensors = (at + 31) // 32 * 32, {}
    for name, kind, shape, offset in infos:
        count = 1
        for d in shape:
            count *= d
        size = {0: 4 * count, 1: 2 * count, 30: 2 * count, 8: count // 32 * 34}[kind]
        assert offset % 32 == 0 and start + offset + size <= len(data), name
        tensors[name] = (kind, shape, data[start + offset:start + offset + size])
    return keys, tensors


def read_safetensors(*paths):
    tensors = {}
    for path in paths:
        data = pathlib.Path(path).read_bytes()
        n = struct.unpack_from("<Q", data)[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                tensors[name] = (t["dtype"], t["shape"], data[8 + n + a:8 + n + b])
    return tensors


def bf16(raw):
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]


def export_gguf():
    with World() as w:
        base = read_safetensors(*sorted(nano.glob("*.safetensors")))
        out = {}
        for kind in ("bf16", "f16", "q8_0", "f32"):
            r = w.run("export", "nano", "--to", "gguf", "--type", kind, "-o", f"{kind}.gguf", "--json")
            check(f"gguf {kind}", r.returncode == 0 and json.loads(r.stdout)["files"][0]["name"] == f"{kind}.gguf", r.stderr)
            out[kind] = read_gguf(os.path.join(w.home, f"{kind}.gguf"))
        keys, tensors = out["bf16"]
        vocab = json.loads((nano / "tokenizer.json").read_text())
        check("gguf: architecture", keys["general.architecture"] == "qwen3" and keys["qwen3.block_count"] == 8
              and keys["qwen3.attention.key_length"] == 64 and keys["general.file_type"] == 32, keys["general.file_type"])
        check("gguf: tokenizer", len(keys["tokenizer.ggml.tokens"]) == 4096 and keys["tokenizer.ggml.pre"] == "qwen2"
              and all(keys["tokenizer.ggml.tokens"][i] == t for t, i in vocab["model"]["vocab"].items())
              and keys["tokenizer.ggml.tokens"][4095] == "<|im_end|>" and keys["tokenizer.ggml.token_type"][4095] == 3
              and len(keys["tokenizer.ggml.merges"]) == len(vocab["model"]["merges"])
              and keys["tokenizer.ggml.eos_token_id"] == 4095 and keys["tokenizer.ggml.add_bos_token"] is False)
        check("gguf: chat template", keys["tokenizer.chat_template"]
              == json.loads((nano / "tokenizer_config.json").read_text())["chat_template"])
        names = {"token_embd": "model.embed_tokens", "blk.3.attn_q": "model.layers.3.self_attn.q_proj",
                 "blk.3.attn_output": "model.layers.3.self_attn.o_proj", "blk.7.ffn_down": "model.layers.7.mlp.down_proj"}
        for ours, theirs in names.items():
            dtype, shape, raw = base[theirs + ".weight"]
            check(f"gguf: {ours} keeps its bits", dtype == "BF16" and tensors[ours + ".weight"] == (30, shape[::-1], raw))
            q = out["q8_0"][1][ours + ".weight"]
            row = bf16(raw[:64])
            scale = struct.unpack("<e", q[2][:2])[0]
            near = [scale * b for b in struct.unpack("32b", q[2][2:34])]
            check(f"gguf: {ours} as q8_0", q[0] == 8 and max(abs(a - b) for a, b in zip(row, near)) <= scale * 0.51)
        check("gguf: a tied head is not written twice", "output.weight" not in tensors)
        norm = base["model.norm.weight"][2]
        check("gguf: norms are f32", list(struct.unpack("<384f", tensors["output_norm.weight"][2])) == bf16(norm))
        r = w.run("export", "nano", "--to", "gguf", "-o", "bf16.gguf")
        check("gguf: an existing file stays", r.returncode == 5 and "already exists" in r.stderr, (r.returncode, r.stderr))
        r = w.run("export", "nano", "--to", "peft", "-o", "x")
        check("a model is not an adapter", r.returncode != 0, r.stderr)
        bad = pathlib.Path(w.home, "bad")
        shutil.copytree(nano, bad)
        text = (bad / "tokenizer.json").read_text()
        for name, wrong in (("pre-tokenizer", text.replace("p{N}|", "p{N}{1,2}|")), ("kind", text.replace('"BPE"', '"WordPiece"'))):
            (bad / "tokenizer.json").write_text(wrong)
            r = w.run("export", "bad", "--to", "gguf", "-o", "bad.gguf")
            check(f"gguf: unknown {name} is refused by name", r.returncode != 0 and "GGUF has no" in r.stderr
                  and not os.path.exists(os.path.join(w.home, "bad.gguf")), r.stderr)


def write_safetensors(path, tensors):
    head, blob = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(head).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + blob)


def export_llama():
    with World() as w:
        folder, r, h, d, heads, kv = pathlib.Path(w.home, "l"), random.Random(3), 64, 16, 4, 2
        folder.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(nano / name, folder)
        (folder / "config.json").write_text(json.dumps(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": h, "intermediate_size": 96,
             "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": 4096,
             "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
             "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                      "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}))
        shapes = {"model.embed_tokens": [4096, h], "lm_head": [4096, h], "model.norm": [h],
                  "model.layers.0.input_layernorm": [h], "model.layers.0.post_attention_layernorm": [h],
                  "model.layers.0.self_attn.q_proj": [heads * d, h], "model.layers.0.self_attn.k_proj": [kv * d, h],
                  "model.layers.0.self_attn.v_proj": [kv * d, h], "model.layers.0.self_attn.o_proj": [h, heads * d],
                  "model.layers.0.mlp.gate_proj": [96, h], "model.layers.0.mlp.up_proj": [96, h],
                  "model.layers.0.mlp.down_proj": [h, 96]}
        values = {n + ".weight": (s, [r.uniform(-1, 1) for _ in range(s[0] * (s[1] if len(s) > 1 else 1))])
                  for n, s in shapes.items()}
        write_safetensors(folder / "model.safetensors", values)
        r = w.run("export", "l", "--to", "gguf", "--type", "f32", "-o", "l.gguf")
        check("gguf of a llama", r.returncode == 0, r.stderr)
        keys, gguf = read_gguf(os.path.join(w.home, "l.gguf"))
        for ours, theirs, n, turned in (("attn_q", "q_proj", heads, True), ("attn_k", "k_proj", kv, True),
                                        ("attn_v", "v_proj", kv, False)):
            flat = struct.unpack(f"<{n * d * h}f", values_bytes := gguf[f"blk.0.{ours}.weight"][2])
            source = struct.unpack(f"<{n * d * h}f", struct.pack(f"<{n * d * h}f",
                                                                 *values[f"model.layers.0.self_attn.{theirs}.weight"][1]))
            ok = all(flat[row * h:(row + 1) * h] == source[at * h:(at + 1) * h]
                     for row in range(n * d)
                     for at in [row // d * d + (row % d % 2 * (d // 2) + row % d // 2 if turned else row % d)])
            check(f"gguf of a llama: rows of {ours}", ok and len(values_bytes) == n * d * h * 4)
        factors = struct.unpack("<8f", gguf["rope_freqs.weight"][2])
        check("gguf of a llama: rope factors run from 1 to 8", factors[0] == 1 and abs(factors[-1] - 8) < 1e-4
              and list(factors) == sorted(factors), factors)
        check("gguf of a llama: a head of its own", "output.weight" in gguf and keys["general.architecture"] == "llama")


def random_adapter(folder, targets, rank=2, alpha=8, names="lm_head"):
    """A PEFT adapter of nano with non-zero A and B, and what it holds."""
    shapes = {"q_proj": ("self_attn", 384, 384), "v_proj": ("self_attn", 384, 128), "down_proj": ("mlp", 1024, 384)}
    r, tensors = random.Random(11), {}
    for layer in range(8):
        for t in targets:
            if t in shapes:
                group, a, b = shapes[t]
                stem = f"base_model.model.model.layers.{layer}.{group}.{t}"
                tensors[f"{stem}.lora_A.weight"] = ([rank, a], [r.uniform(-1, 1) / 16 for _ in range(rank * a)])
                tensors[f"{stem}.lora_B.weight"] = ([b, rank], [r.uniform(-1, 1) / 16 for _ in range(rank * b)])
    if "lm_head" in targets:
        stem = f"base_model.model.{names}"
        tensors[f"{stem}.lora_A.weight"] = ([rank, 384], [r.uniform(-1, 1) / 16 for _ in range(rank * 384)])
        tensors[f"{stem}.lora_B.weight"] = ([4096, rank], [r.uniform(-1, 1) / 16 for _ in range(rank * 4096)])
    folder = pathlib.Path(folder)
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets, "bias": "none",
         "base_model_name_or_path": "nano"}))
    return tensors


def export_merged():
    with World() as w:
        tensors = random_adapter(os.path.join(w.home, "a"), ["q_proj", "lm_head"])
        base = read_safetensors(*sorted(nano.glob("*.safetensors")))
        r = w.run("export", "a", "--to", "merged", "-o", "m", "--json")
        check("merged: the adapter names its base", r.returncode == 0, r.stderr)
        index = json.loads(pathlib.Path(w.home, "m/model.safetensors.index.json").read_text())
        files = sorted(pathlib.Path(w.home, "m").glob("*.safetensors"))
        whole = read_safetensors(*files)
        check("merged: the index has metadata", index["metadata"]["total_size"] == sum(len(t[2]) for t in whole.values()), index["metadata"])
        check("merged: the index names every tensor", set(index["weight_map"]) == set(whole))
        r = w.run("export", "a", "--to", "gguf", "--type", "f32", "-o", "m.gguf")
        keys, gguf = read_gguf(os.path.join(w.home, "m.gguf"))
        for ours, theirs, stem, cols in (("blk.5.attn_q", "model.layers.5.self_attn.q_proj", None, 384),
                                         ("output", "model.embed_tokens", "lm_head", 384)):
            stem = f"base_model.model.{stem or theirs}"
            a, b = tensors[f"{stem}.lora_A.weight"][1], tensors[f"{stem}.lora_B.weight"][1]
            got = struct.unpack(f"<{cols}f", gguf[ours + ".weight"][2][4 * cols * 7:4 * cols * 8])
            row = bf16(base[theirs + ".weight"][2][2 * cols * 7:2 * cols * 8])
            want = [x + 4 * sum(b[7 * 2 + k] * a[k * cols + c] for k in range(2)) for c, x in enumerate(row)]
            check(f"gguf: {ours} is merged", max(abs(x - y) for x, y in zip(got, want)) < 1e-6)
        r = w.run("export", "a", "--to", "peft", "--drop-unembed", "-o", "p")
        check("--drop-unembed says what it costs", r.returncode == 0 and "answers differ" in r.stderr, r.stderr)
        r = w.run("export", "a", "--to", "hosted", "-o", "h")
        names = set(read_safetensors(os.path.join(w.home, "h/adapter_model.safetensors")))
        check("--to hosted", any("model.unembed_tokens" in n for n in names) and not any("lm_head" in n for n in names))


def scores(w, *args):
    """Log-probabilities of a text's tokens; a text says what went wrong."""
    pathlib.Path(w.home, "text").write_text("hello world, how are you?")
    r = w.run("logprobs", *args, "text", "--json", timeout=300)
    return [t["logprob"] for t in json.loads(r.stdout)["tokens"][1:]] if r.returncode == 0 else r.stderr


def from_adapter():
    with World() as w:
        random_adapter(os.path.join(w.home, "a"), ["q_proj", "v_proj", "lm_head"], rank=3, alpha=24)
        w.run("export", "a", "--to", "merged", "-o", "m")
        plain, merged = scores(w, "-m", "nano"), scores(w, "-m", "m")
        adapted = scores(w, "--from-adapter", "a")
        check("logprobs --from-adapter", isinstance(adapted, list) and len(adapted) == len(merged) > 3, adapted)
        check("the adapter counts", max(abs(a - b) for a, b in zip(plain, adapted)) > 0.05, (plain, adapted))
        check("and gives what merging gives", max(abs(a - b) for a, b in zip(merged, adapted)) < 0.05, (merged, adapted))
        before = w.run("run", "list", "--json").stdout
        check("again gives the same bits, and no second run", scores(w, "--from-adapter", "a", "-m", "nano") == adapted
              and w.run("run", "list", "--json").stdout == before)
        hosted = w.run("export", "a", "--to", "hosted", "-o", "h")
        check("the service's names are read, too", scores(w, "--from-adapter", "h") == adapted, hosted.stderr)
        rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}] * 4
        pathlib.Path(w.home, "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        r = w.run("train", "sft", "d.jsonl", "--from-adapter", "a", "--batch-size", "4", "--log-dir", "run",
                  "--lr", "0.001", timeout=300)
        trained = scores(w, "-m", "run")
        check("train --from-adapter", r.returncode == 0 and isinstance(trained, list), r.stderr[-500:])
        check("training starts from the adapter", isinstance(trained, list)
              and 0 < max(abs(a - b) for a, b in zip(trained, adapted)) < 0.6
              and max(abs(a - b) for a, b in zip(trained, adapted)) < max(abs(a - b) for a, b in zip(trained, plain)),
              (trained, adapted, plain))
        w.run("checkpoint", "download", json.loads(pathlib.Path(w.home, "run/checkpoints.jsonl").read_text()
              .splitlines()[-1])["sampler_path"], "-o", "t", "--flat")
        got = read_safetensors(next(pathlib.Path(w.home, "t").rglob("adapter_model.safetensors")))
        name = "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"
        check("matrices that the adapter did not have are trained as well", name in got and any(got[name][2]))


def from_adapter_refused():
    with World() as w:
        for key, value, says in (("use_dora", True, "use_dora"), ("rank_pattern", {"q_proj": 4}, "rank_pattern"),
                                 ("modules_to_save", ["lm_head"], "modules_to_save"), ("bias", "all", "bias"),
                                 ("peft_type", "LOHA", "LOHA"), ("r", 4, "shape"), ("r", 0, "lora_alpha"),
                                 ("lora_bias", True, "lora_bias")):
            folder = pathlib.Path(w.home, f"{key}-{value if not isinstance(value, (dict, list)) else 'x'}")
            random_adapter(folder, ["q_proj"])
            config = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps(dict(config, **{key: value})))
            r = w.run("sample", "hi", "--from-adapter", folder, "--max-tokens", "1")
            check(f"{key}={value} is refused by name", r.returncode != 0 and says in r.stderr, r.stderr)
        folder = pathlib.Path(w.home, "stray")
        random_adapter(folder, ["q_proj"])
        data = (folder / "adapter_model.safetensors").read_bytes()
        (folder / "adapter_model.safetensors").write_bytes(data.replace(b"layers.7.self_attn.q_proj", b"layers.9.self_attn.q_proj"))
        r = w.run("sample", "hi", "--from-adapter", folder, "--max-tokens", "1")
        check("a stray tensor is named", r.returncode != 0 and "layers.9.self_attn.q_proj" in r.stderr, r.stderr)
        (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
        r = w.run("sample", "hi", "--from-adapter", folder, "--max-tokens", "1")
        check("a pickle is refused", r.returncode != 0 and "pickle" in r.stderr, r.stderr)
        r = w.run("sample", "hi", "--from-adapter", "nowhere", "--max-tokens", "1")
        check("no such adapter", r.returncode != 0 and "nowhere" in r.stderr, r.stderr)
        scaled = pathlib.Path(w.home, "rs"), pathlib.Path(w.home, "plain")
        for folder, alpha in zip(scaled, (8, 16)):
            random_adapter(folder, ["q_proj"], rank=4, alpha=alpha)
        config = json.loads((scaled[0] / "adapter_config.json").read_text())
        (scaled[0] / "adapter_config.json").write_text(json.dumps(dict(config, use_rslora=True)))
        check("rank-stabilised scaling", scores(w, "--from-adapter", "rs") == scores(w, "--from-adapter", "plain"))


groups = [pull_layout, pull_timeout, pull_choice, pull_revisions, pull_pages, pull_faults, pull_refusals, pull_hostile, pull_offline,
          pull_resume, pull_twice, model_by_name, model_prompt, push_adapter, push_refusals, push_large, push_trained,
          export_gguf, export_llama, export_merged, from_adapter, from_adapter_refused]
try:
    for group in groups:
        if not wanted or group.__name__ in wanted:
            group()
finally:
    shutil.rmtree(home, ignore_errors=True)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
