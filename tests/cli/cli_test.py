"""Black-box tests of build/tinkc: grammar, formats, errors, exit codes, help, manual, completion.

    cli_test.py BUILD [--update]     --update rewrites tests/cli/golden after review
"""
import json, os, pathlib, re, shutil, subprocess, sys, tempfile
import stub

here = pathlib.Path(__file__).resolve().parent
build = pathlib.Path(sys.argv[1]).resolve()
update = "--update" in sys.argv
server, url = stub.start()
home = tempfile.mkdtemp(prefix="tinkc-cli-test-")
passed, failed = 0, []
base_env = {"PATH": f"{build}:{os.environ['PATH']}", "HOME": home, "LC_ALL": "C.UTF-8",
            "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-test", "TZ": "UTC"}
for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
    if name in os.environ:
        base_env[name] = os.environ[name]


def tinkc(*args, stdin="", env=None, cwd=None, timeout=60):
    whole = dict(base_env, **(env or {}))
    whole = {k: v for k, v in whole.items() if v is not None}
    return subprocess.run([build / "tinkc", *args], input=stdin, capture_output=True, text=True, env=whole,
                          timeout=timeout, cwd=cwd or home)


def check(name, condition, detail=""):
    global passed
    if condition:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED {name}: {detail}")


def golden(name, *args, columns=None, **more):
    r = tinkc(*args, env={"COLUMNS": str(columns)} if columns else None, **more)
    path = here / "golden" / name
    text = r.stdout.replace(url, "URL").replace(home, "HOME")
    if update:
        path.write_text(text)
    wanted = path.read_text() if path.exists() else None
    check(f"golden {name}", r.returncode == 0 and text == wanted, f"exit {r.returncode}, {r.stderr}\n{text}")


def exits(code, *args, says="", **more):
    r = tinkc(*args, **more)
    check(f"exit {code}: {' '.join(map(str, args))}", r.returncode == code and says in r.stderr and not r.stdout,
          f"exit {r.returncode}, stderr {r.stderr!r}, stdout {r.stdout!r}")
    return r


def grammar():
    exits(2, "chekpoint", says="did you mean: tinkc checkpoint")
    exits(2, "checkpoint", "lst", says="did you mean: tinkc checkpoint list")
    exits(2, "run", "list", "--limt", "3", says="did you mean --limit?")
    exits(2, "run", "list", "--limit", "-1", says="not negative")
    exits(2, "run", "list", "--limit", says="needs a value")
    exits(2, "run", "list", "-c", "id,nope", says="unknown column 'nope'")
    exits(2, "run", "list", "--json=nope", says="unknown field")
    exits(2, "run", "info", says="argument is missing")
    exits(2, "run", "info", "a", "b", says="one argument too many")
    exits(2, "run", "list", "--format", "xml", says="one of")
    exits(2, "run", "list", "--quiet=1", says="takes no value")
    exits(2, "checkpoint", "set-ttl", "tinker://run-1/weights/000020", says="--ttl")
    exits(2, "checkpoint", "set-ttl", "tinker://run-1/weights/000020", "--ttl", "0", says="above 0")
    exits(2, "checkpoint", "info", "run-1/weights/x", says="invalid checkpoint path")
    exits(2, "train", "sft", "wandb_project=x", says="no counterpart")
    for r in (tinkc("-f", "json", "run", "list"), tinkc("run", "list", "-f", "json"), tinkc("run", "list", "--json")):
        check("format anywhere", json.loads(r.stdout)["total_count"] == 3, r.stdout)
    check("alias", tinkc("run", "ls", "-f", "id").stdout == "run-1\nrun-2\nrun-3\n")
    check("negated and clustered", tinkc("-qv", "run", "list", "-f", "id").returncode == 0)
    for args in ((), ("checkpoint",)):
        r = tinkc(*args)
        check(f"help of {args}", r.returncode == 0 and "Usage:" in r.stdout, r.stdout)
    r = exits(2, "run", "list", "--limit", "x", "--json")
    check("error as JSON", json.loads(r.stderr)["error"]["exit_code"] == 2, r.stderr)


def formats():
    for width in (40, 80, 200):
        golden(f"run-list-{width}.txt", "run", "list", "-f", "table", columns=width)
        golden(f"checkpoint-list-{width}.txt", "checkpoint", "list", "-f", "table", "--time", "iso", columns=width)
    golden("run-list.tsv", "run", "list")
    golden("run-list.json", "run", "list", "--json")
    golden("run-list.jsonl", "run", "list", "-f", "jsonl")
    golden("run-list.csv", "run", "list", "-f", "csv", "-c", "id,owner,metadata")
    golden("run-list-fields.json", "run", "list", "--json=training_run_id,last_checkpoint.time")
    golden("run-list-limit.json", "run", "list", "--limit", "1", "--json")
    golden("run-list-filter.txt", "run", "list", "--filter", "corrupted=false", "--sort", "training_run_id",
           "--reverse", "-f", "id")
    golden("run-info.txt", "run", "info", "run-1", "-f", "table", columns=100)
    golden("run-info.json", "run", "info", "run-1", "--checkpoints", "--json")
    golden("checkpoint-list.tsv", "checkpoint", "list")
    golden("checkpoint-list.json", "checkpoint", "list", "--run-id", "run-1", "--json")
    golden("checkpoint-list-type.txt", "checkpoint", "list", "--type", "weights", "--before", "2025-01-15", "-f", "id")
    golden("checkpoint-info.json", "checkpoint", "info", "tinker://run-1/weights/000040", "--json")
    golden("checkpoint-info.txt", "checkpoint", "info", "tinker://run-1/weights/000040", "-f", "table", columns=100)
    golden("session-list.json", "session", "list", "--json")
    golden("session-info.json", "session", "info", "s-1", "--json")
    golden("model-list.txt", "model", "list", "-f", "table", columns=100)
    golden("model-list.json", "model", "list", "--json")
    golden("model-info.json", "model", "info", "Qwen/Qwen3-8B", "--json")
    golden("sampler-info.json", "sampler", "info", "smp-1", "--json")
    golden("audit-list.tsv", "audit", "list", "--day", "2026-07-13")
    golden("billing.json", "billing", "usage", "2026-07-13", "2026-07-14", "--json")
    golden("billing.txt", "billing", "usage", "2026-07-13", "2026-07-14", "-f", "table", columns=200)
    golden("billing.csv", "billing", "usage", "2026-07-13", "2026-07-14", "--csv", "-")
    golden("billing-sessions.csv", "billing", "usage", "2026-07-13", "2026-07-14", "--sessions-csv", "-")
    golden("billing-group.tsv", "billing", "usage", "2026-07-13", "2026-07-14", "--group-by", "base_model")
    golden("api.json", "api", "GET", "/api/v1/healthz")
    golden("compat-run-info.json", "run", "info", "run-1", "--json", )
    r = tinkc("run", "info", "run-1", "--json", env={"TINKC_COMPAT": "1"})
    check("compat times", '"2025-01-02 03:04:05+00:00"' in r.stdout and "new_field" not in r.stdout, r.stdout)


def errors():
    rows = [("missing", 3, "not_found"), ("forbidden", 4, "permission_denied"), ("rejected", 4, "auth_rejected"),
            ("invalid", 6, "invalid_request"), ("unprocessable", 6, "invalid_request"), ("limited", 7, "rate_limited"),
            ("unpaid", 7, "billing_blocked"), ("broken", 9, "server_error"), ("taken", 5, "conflict")]
    for name, code, kind in rows:
        exits(code, "run", "info", name, "--retry-for", "0", says="error:")
        r = exits(code, "run", "info", name, "--retry-for", "0", "--json")
        check(f"code {name}", json.loads(r.stderr)["error"]["code"] == kind, r.stderr)
    exits(4, "run", "list", env={"TINKER_API_KEY": "nonsense"}, says="error:")
    exits(8, "run", "list", "--base-url", "http://127.0.0.1:1", "--retry-for", "0", says="error:")
    exits(8, "run", "list", "--offline", says="network")
    exits(124, "run", "list", "--base-url", "http://127.0.0.1:1", "--timeout", "1", "--retry-for", "60")
    exits(3, "data", "check", "no-such-file.jsonl", says="no-such-file.jsonl")
    full = subprocess.run(f"{build}/tinkc help > /dev/full", shell=True, env=base_env, capture_output=True)
    check("full disk", full.returncode == 1, full.stderr)
    pipe = subprocess.run(f"{build}/tinkc help | head -n 1 > /dev/null; echo ${{PIPESTATUS[0]}}", shell=True,
                          env=base_env, capture_output=True, text=True, executable="/bin/bash")
    check("broken pipe is quiet", pipe.stderr == "" and pipe.stdout.strip() in ("0", "141"), pipe)


def changes():
    p1, p2 = "tinker://run-1/weights/000020", "tinker://run-1/weights/000040"
    r = tinkc("checkpoint", "publish", p1, p2, "--json")
    check("publish", r.returncode == 0 and [x["changed"] for x in json.loads(r.stdout)["results"]] == [True, True], r)
    r = tinkc("checkpoint", "publish", "tinker://taken/weights/x")
    check("already public", r.returncode == 0 and "already" in r.stderr, r)
    r = tinkc("checkpoint", "set-ttl", p1, "--ttl", "7d")
    check("ttl", r.returncode == 0 and b'"ttl_seconds":604800' in server.seen[-1][2].replace(b" ", b""), server.seen[-1])
    exits(2, "checkpoint", "delete", p1, says="add --yes")
    r = tinkc("checkpoint", "delete", p1, p2, "-y", "--json")
    check("delete", r.returncode == 0 and json.loads(r.stdout)["deleted_count"] == 2, r)
    r = tinkc("checkpoint", "delete", p1, "tinker://missing/weights/x", "-y", "--json")
    check("partly", r.returncode == 10 and len(json.loads(r.stdout)["failed"]) == 1, r)
    r = tinkc("checkpoint", "delete", "tinker://missing/weights/x", "-y")
    check("all failed", r.returncode == 3, r)
    r = tinkc("checkpoint", "delete", "--run-id", "run-1", "--after", "2030-01-01", "-y", "--json")
    check("none found", r.returncode == 0 and json.loads(r.stdout)["deleted_count"] == 0, r)
    r = tinkc("checkpoint", "delete", "--run-id", "run-1", "--keep-last", "1", "--dry-run")
    check("dry run", r.returncode == 0 and "Will delete 2" in r.stderr and not r.stdout, r)
    before = len([s for s in server.seen if s[0] == "DELETE"])
    r = tinkc("checkpoint", "delete", "-", "-y", "--json", stdin=f"{p1}\n\n{p2}\n")
    check("from stdin", json.loads(r.stdout)["deleted_count"] == 2, r)
    check("each once", len([s for s in server.seen if s[0] == "DELETE"]) == before + 2)


def downloads():
    path = "tinker://run-1/sampler_weights/final"
    r = tinkc("checkpoint", "download", path, "-o", "out", "--json")
    folder = pathlib.Path(home, "out", "run-1_sampler_weights_final")
    check("download", r.returncode == 0 and (folder / "adapter_model.safetensors").stat().st_size == 100000, r)
    check("its files", {f["name"] for f in json.loads(r.stdout)["files"]} >= {"adapter_config.json"}, r.stdout)
    exits(5, "checkpoint", "download", path, "-o", "out")
    check("force", tinkc("checkpoint", "download", path, "-o", "out", "--force").returncode == 0)
    r = tinkc("checkpoint", "url", path)
    check("url", r.stdout.strip() == f"{url}/archive.tar", r)
    leftovers = [p.name for p in pathlib.Path(home, "out").iterdir() if ".partial" in p.name]
    check("nothing half-made", leftovers == [], leftovers)


def configuration():
    env = {"TINKER_API_KEY": None, "TINKER_BASE_URL": None}
    check("set", tinkc("config", "set", "base_url", url, env=env).returncode == 0)
    r = tinkc("auth", "login", "--api-key-file", "-", stdin="tml-secret-abcdef\n", env=env)
    check("login", r.returncode == 0, r)
    secret = pathlib.Path(home, ".config/tinkc/credentials.toml")
    check("mode", secret.stat().st_mode & 0o777 == 0o600, oct(secret.stat().st_mode))
    r = tinkc("config", "list", "--json", env=env)
    check("secrets blotted", "secret" not in r.stdout and len(json.loads(r.stdout)["values"]) == 2, r.stdout)
    check("key is used", tinkc("run", "list", "-f", "id", env=env).stdout.startswith("run-1"))
    secret.chmod(0o644)
    exits(2, "run", "list", env=env, says="others can read")
    secret.chmod(0o600)
    project = pathlib.Path(home, "project")
    project.mkdir()
    (project / ".tinkc.toml").write_text('base_url = "http://evil"\n')
    exits(2, "run", "list", env=env, cwd=project, says=".tinkc.toml:1:")
    (project / ".tinkc.toml").write_text('model = "m"\n# fine\nformat = "id"\n')
    check("project format", tinkc("run", "list", env=env, cwd=project).stdout == "run-1\nrun-2\nrun-3\n")
    (project / "bad.toml").write_text("[profile\n")
    exits(2, "run", "list", "--config-file", "bad.toml", cwd=project, says="bad.toml:1:")
    check("logout", tinkc("auth", "logout", env=env).returncode == 0 and "secret" not in secret.read_text())
    exits(2, "config", "set", "modle", "x", env=env, says="did you mean model?")
    exits(4, "auth", "login", "--api-key-file", "-", stdin="hello\n", env=env, says="no Tinker credential")


def documentation():
    table = json.loads(tinkc("help", "--json").stdout)
    for c in table["commands"]:
        words = [c["noun"]] + ([c["verb"]] if "verb" in c else [])
        text = tinkc(*words, "--help").stdout
        whole = tinkc("help", *words).stdout
        page = tinkc("man", c["noun"]).stdout.replace("\\-", "-")
        for o in c["options"]:
            flag = ("[no-]" if o["kind"] == "flag" and o.get("default") == "on" else "") + o["name"]
            check(f"{words} --{o['name']} in help", f"--{flag}" in text and o["help"] in text)
            check(f"{words} --{o['name']} in man", f"Fl Fl {o['name']}" in page)
        check(f"{words} examples", bool(c["examples"]) and all(e in text for e in c["examples"]))
        check(f"{words} globals", "--base-url" in whole)
        check(f"{words} completes", all(f"--{o['name']}\t" in tinkc("__complete", "--", *words, "--").stdout
                                       for o in c["options"][:3]))
    if shutil.which("mandoc"):
        for page in tinkc("man", "--list").stdout.split():
            text = tinkc("man", page).stdout
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"], input=text, capture_output=True, text=True)
            check(f"mandoc {page}", lint.returncode == 0, lint.stdout)
    for topic in ("exit-codes", "environment", "formatting", "config", "paths"):
        check(f"topic {topic}", len(tinkc("help", topic).stdout) > 100)


def completions():
    scripts = {
        "bash": 'source <(tinkc completion bash); COMP_WORDS=(tinkc checkpoint de); COMP_CWORD=2; _tinkc; echo "${COMPREPLY[@]}"',
        "zsh": "autoload -U compinit; compinit -u -d $HOME/.zcd; source <(tinkc completion zsh); whence -w _tinkc; "
               "_describe() { print -l ${(P)2}; }; words=(tinkc checkpoint de); CURRENT=3; _tinkc",
        "fish": "tinkc completion fish | source; complete -C 'tinkc checkpoint de'",
    }
    for shell, script in scripts.items():
        if not shutil.which(shell):
            print(f"skipped: {shell} is not installed")
            continue
        r = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=base_env, timeout=60)
        check(f"completion in {shell}", "delete" in r.stdout and "publish" not in r.stdout, r)


def data():
    good = '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}\n'
    path = pathlib.Path(home, "d.jsonl")
    path.write_text("\ufeff" + good + "\n" + good.strip() + "\r\n", encoding="utf-8")
    check("good data", tinkc("data", "check", path).returncode == 0)
    path.write_text(good + "{bad\n" + '{"messages":[]}\n' + '{"messages":[{"role":"user"}]}\n' + '{"x":1}\n' + good)
    r = tinkc("data", "check", path)
    lines = [l.split(":")[1] for l in r.stdout.splitlines()]
    check("all problems with their lines", r.returncode == 12 and lines == ["2", "3", "4", "5"], r)
    r = tinkc("data", "check", path, "--json")
    v = json.loads(r.stdout)
    check("as JSON", v["files"][0]["errors"] == 4 and v["files"][0]["conversations"] == 2, r.stdout)
    r = tinkc("train", "sft", path, "--local", "--dry-run")
    check("train refuses before sending", r.returncode == 6 and f"{path}:2:" in r.stderr, r)
    path.write_text(good * 50)
    r = tinkc("data", "split", path, "--test", "10", "-o", "split")
    check("split", len(pathlib.Path(home, "split/test.jsonl").read_text().splitlines()) == 10, r)
    check("stats", json.loads(tinkc("data", "stats", path, "--json").stdout)["duplicates"] == 49)
    share = '[{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]'
    r = tinkc("data", "convert", "-", "--from", "sharegpt", stdin=share)
    check("convert", json.loads(r.stdout)["messages"][1] == {"role": "assistant", "content": "b"}, r)


for group in (grammar, formats, errors, changes, downloads, configuration, documentation, completions, data):
    group()
shutil.rmtree(home, ignore_errors=True)
print(f"cli: {passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
