"""Black-box tests of build/tinkc: grammar, formats, errors, exit codes, help, manual, completion.

    cli_test.py BUILD [--update] [GROUP...]     --update rewrites tests/cli/golden after review
"""
import base64, json, os, pathlib, pty, re, shlex, shutil, signal, socket, subprocess, sys, tempfile, termios, time
import stub

here = pathlib.Path(__file__).resolve().parent
build = pathlib.Path(sys.argv[1]).resolve()
update = "--update" in sys.argv
wanted = [a for a in sys.argv[2:] if not a.startswith("-")]
server, url = stub.start()
home = tempfile.mkdtemp(prefix="tinkc-cli-test-")
empty = tempfile.mkdtemp(prefix="empty-", dir=home)
passed, failed = 0, []
base_env = {"PATH": f"{build}:{os.environ['PATH']}", "HOME": home, "LC_ALL": "C.UTF-8",
            "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-test", "TZ": "UTC"}
for name in ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "TINKC_MUTANT", "TINKC_MUTANT_MAP"):
    if name in os.environ:
        base_env[name] = os.environ[name]


def tinkc(*args, stdin="", env=None, cwd=None, timeout=300):
    whole = dict(base_env, **(env or {}))
    whole = {k: v for k, v in whole.items() if v is not None}
    begun = time.monotonic()
    r = subprocess.run([build / "tinkc", *args], input=stdin, capture_output=True, text=True, env=whole,
                       timeout=timeout, cwd=cwd or home)
    r.took_ms = (time.monotonic() - begun) * 1000
    return r


def waited(r, least_ms, most_ms):
    """Did it sleep so long between attempts, as it says itself with -vv? Less only if attempts took that long."""
    ms = sum(int(ms) for ms in re.findall(r"next try in (\d+) ms", r.stderr))
    return ms <= most_ms and (ms >= least_ms or r.took_ms > most_ms)


def await_files(folder):
    """Until something of a download has been written there."""
    for _ in range(12000):
        if any(files for _, _, files in os.walk(folder)):
            return
        time.sleep(0.01)


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
    for fields in ("", ",", "a,,b"):
        exits(2, "run", "list", f"--json={fields}", says="a name is missing")
    exits(2, "help", "run", "lits", says="did you mean: tinkc run list")
    exits(2, "help", "exit-code", says="did you mean: tinkc help exit-codes")
    exits(2, "run", "list", "--filter", "a", says="is not KEY=VALUE")
    exits(2, "run", "info", says="argument is missing")
    exits(2, "run", "info", "a", "b", says="one argument too many")
    exits(2, "run", "list", "--format", "xml", says="one of")
    exits(2, "run", "list", "--quiet=1", says="takes no value")
    exits(2, "checkpoint", "set-ttl", "tinker://run-1/weights/000020", says="--ttl")
    exits(2, "checkpoint", "set-ttl", "tinker://run-1/weights/000020", "--ttl", "0", says="above 0")
    exits(2, "checkpoint", "info", "run-1/weights/x", says="invalid checkpoint path")
    exits(2, "train", "sft", "wandb_name=x", says="does not take the cookbook field")
    for r in (tinkc("-f", "json", "run", "list"), tinkc("run", "list", "-f", "json"), tinkc("run", "list", "--json")):
        check("format anywhere", json.loads(r.stdout)["total_count"] == 3, r.stdout)
    check("alias", tinkc("run", "ls", "-f", "id").stdout == "run-1\nrun-2\nrun-3\n")
    check("negated and clustered", tinkc("-qv", "run", "list", "-f", "id").returncode == 0)
    for args in ((), ("checkpoint",)):
        r = tinkc(*args)
        check(f"help of {args}", r.returncode == 0 and "Usage:" in r.stdout, r.stdout)
    r = exits(2, "run", "list", "--limit", "x", "--json")
    check("error as JSON", json.loads(r.stderr)["error"]["exit_code"] == 2, r.stderr)


def refusals():
    """The table refusals.txt: one row for each way in which a command is refused."""
    for line in (here / "refusals.txt").read_text().splitlines():
        if line and line[0] != "#":
            code, rest = line.split(" | ", 1)
            says, command = rest.rsplit(" | ", 1)
            exits(int(code), *shlex.split(command), says=f"error: {says}", cwd=empty, env={"HF_HUB_OFFLINE": "1"})


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


def tables():
    """At 80 and 120 columns: what people need is there whole, nothing is wider than the terminal."""
    quiet = {"HF_HUB_OFFLINE": "1"}
    findings = json.loads(tinkc("doctor", "--offline", "--json", env=quiet).stdout)["checks"]
    paths = [c["tinker_path"] for c in json.loads(tinkc("checkpoint", "list", "--json").stdout)["checkpoints"]]
    run = pathlib.Path(home, "digits")
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 0, "train_mean_nll": 12.396500454335992, "learning_rate": 9.499999999999998e-05}\n'
                                       '{"step": 1, "train_mean_nll": 1234.56789, "num_tokens": 1234567, "learning_rate": 0.0005}\n')
    for width in (80, 120):
        env = dict(quiet, COLUMNS=str(width))
        r = tinkc("doctor", "--offline", "-f", "table", env=env)
        flat = "".join(r.stdout.split())
        for c in findings:
            if c["id"] not in ("terminal", "machine.store", "machine.tmp", "machine.device"):  # these change from run to run
                check(f"{c['id']} whole at {width}", "".join(c["message"].split()) in flat and "".join((c["hint"] or "").split()) in flat, r.stdout)
        check(f"doctor within {width}", max(map(len, r.stdout.splitlines())) <= width and "\u2026" not in r.stdout, r.stdout)
        check("no blanks at ends of broken lines", not re.search(r"\w $", r.stdout, re.M), r.stdout)
        r = tinkc("checkpoint", "list", "-f", "table", "--time", "iso", env=env)
        check(f"paths whole at {width}", all(re.search(rf"\s{re.escape(p)}$", r.stdout, re.M) for p in paths), r.stdout)
        check(f"checkpoints within {width}", max(map(len, r.stdout.splitlines())) <= width, r.stdout)
        rows = [line.split() for line in tinkc("logs", "show", run, "-f", "table", env=env).stdout.splitlines()[3:]]
        check(f"three digits at {width}", rows == [["0", "12.4", "9.5e-05"], ["1", "1235", "0.0005", "1234567"]], rows)
    check("all digits for programs", "12.396500454335992" in tinkc("logs", "show", run, "-f", "tsv").stdout)
    r = tinkc("run", "list", "-f", "table", env={"COLUMNS": "40"})
    check("what is left out is said", "LoRA" not in r.stdout and r.stderr == "not shown at this width: LoRA (--no-trunc shows all)\n", r)
    r = tinkc("run", "list", "-f", "table", "-c", "id,lora,model,updated,status", env={"COLUMNS": "40"})
    check("what was asked for stays", "LoRA" in r.stdout and r.stderr == "", r)
    check("models are cut where they are alike", "3-8B" in r.stdout and "Qwen/" not in r.stdout, r)
    r = tinkc("run", "list", "-f", "table", "--no-trunc", env={"COLUMNS": "40"})
    check("--no-trunc shows all", "LoRA" in r.stdout and "Qwen/Qwen3-8B" in r.stdout and r.stderr == "", r)


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


def unknown_names():
    """What names nothing is refused with what there is, not taken for an empty result."""
    exits(2, "run", "list", "--sort", "nope", says="unknown field 'nope'")
    exits(2, "run", "list", "--filter", "nope=1", says="known fields: training_run_id")
    exits(2, "model", "list", "--filter", "nope=1", says="unknown field")
    exits(2, "model", "list", "--sort", "nope", says="unknown field")
    exits(2, "billing", "usage", "2026-07-13", "2026-07-14", "--group-by", "base_model,nope", says="unknown field 'nope'")
    check("of later rows", tinkc("billing", "usage", "2026-07-13", "2026-07-14", "--group-by", "cached").returncode == 0)
    r = tinkc("run", "list", "--filter", "user_metadata.purpose=test", "-f", "id")
    check("metadata may have any key", r.stdout == "run-1\n" and tinkc("run", "list", "--sort", "user_metadata.x").returncode == 0, r)
    r = tinkc("run", "list", "--filter", "id=run-2", "--json=training_run_id,last_checkpoint.time")
    check("a field below null", json.loads(r.stdout)["runs"] == [{"training_run_id": "run-2", "last_checkpoint.time": None}], r)
    check("columns name fields, too", tinkc("checkpoint", "list", "--sort", "size", "-f", "id").returncode == 0)
    exits(3, "checkpoint", "info", "tinker://run-1/weights/nope", says="checkpoint not found")
    exits(2, "data", "preview", "x", "--train-on", "nope", says="one of all_assistant_messages|")
    exits(2, "data", "check", "x", "--renderer", "qwen3", says="needs a model")
    exits(2, "auth", "login", "--credential-cmd", "", says="a command is needed")
    exits(4, "auth", "login", "--credential-cmd", "exit 1", says="not stored")
    check("endless input ends", tinkc("tokenizer", "encode", "--file", "/dev/zero", "-m", "nano").returncode == 6)
    r = tinkc("session", "export-trace", "s-1", "--url-only")
    check("a trace takes a while", "may take a while" in r.stderr and r.stdout.startswith("http"), r)


def dead_server():
    """Nobody listens: each command gives up after --retry-for, once, and says that it is the network."""
    p, q = "tinker://run-1/sampler_weights/final", "tinker://run-1/weights/000020"
    commands = [("run", "list"), ("run", "info", "r", "--checkpoints"), ("checkpoint", "list"), ("checkpoint", "info", p),
                ("checkpoint", "publish", p, q, q), ("checkpoint", "set-ttl", p, q, "--ttl", "60"), ("checkpoint", "url", p),
                ("checkpoint", "delete", p, q, "-y"), ("checkpoint", "delete", "--run-id", "r", "-y"), ("checkpoint", "copy", q),
                ("checkpoint", "download", p, "-o", "dead-out"), ("checkpoint", "export", p, "-o", "exported", "--base", "nano"), ("session", "list"),
                ("session", "info", "s"), ("session", "move", "s", "--project", "p", "-y"), ("session", "export-trace", "s"),
                ("model", "list"), ("model", "info", "m"), ("sampler", "info", "x"), ("billing", "usage"), ("audit", "list"),
                ("audit", "sync", "-o", "dead-audit"), ("whoami",), ("auth", "token"), ("api", "GET", "/x"), ("sample", "-m", p, "x"),
                ("logprobs", "-m", p, "--text", "x"), ("chat", "-m", p), ("auth", "login", "--credential-cmd", "echo tml-x"),
                ("auth", "login", "--api-key-file", "-")]
    dead = {"TINKER_BASE_URL": "http://127.0.0.1:9"}
    for c in commands:
        env = dict(dead, TINKER_API_KEY=None) if c[0] == "auth" and c[1] == "login" else dead
        r = tinkc(*c, "--retry-for", "1s", "-vv", env=env, stdin="tml-x\n")
        check(f"dead server: {' '.join(c)}", r.returncode == 8 and r.stdout == "" and "refused" in r.stderr and
              waited(r, 1, 1000), (r.took_ms, r))


def profiles():
    env = {"XDG_CONFIG_HOME": f"{home}/profiled"}
    exits(2, "run", "list", "--profile", "nope", env=env, says="there is no profile 'nope' (command line)")
    exits(2, "run", "list", env=dict(env, TINKC_PROFILE="nope"), says="there is no profile 'nope' (environment)")
    check("made by setting", tinkc("config", "set", "time", "epoch", "--profile", "work", env=env).returncode == 0)
    check("then it is one", tinkc("run", "list", "--profile", "work", "-f", "id", env=env).returncode == 0)
    exits(2, "run", "list", "--profile", "wrok", env=env, says="did you mean work?")
    exits(2, "config", "use-profile", "wrok", env=env, says="did you mean work?")
    for c in (("version",), ("help",), ("completion", "bash"), ("config", "list"), ("config", "profiles")):
        check(f"{c} needs none", tinkc(*c, "--profile", "nope", env=env).returncode == 0)
    r = exits(2, "run", "list", "--profile", "nope", "-f", "json", env=env)
    check("as JSON", json.loads(r.stderr)["error"]["code"] == "config_invalid", r.stderr)
    for args in (("-f", "json"), ("-fjson",), ("--format=json",), ("--format", "jsonl")):
        r = exits(2, *args, "run", "lst")
        check(f"parser's error with {args}", json.loads(r.stderr)["error"]["code"] == "usage", r.stderr)
    r = exits(2, "run", "lst", env={"TINKC_FORMAT": "json"})
    check("and by the environment", json.loads(r.stderr)["error"]["code"] == "usage", r.stderr)


def doctor():
    checks = lambda r: {c["id"]: c for c in json.loads(r.stdout)["checks"]}
    quiet = {"HF_HUB_OFFLINE": "1"}
    r = tinkc("doctor", "--json", env=quiet)
    v = checks(r)
    wanted = {"tool.version", "config.profile", "config.value", "config.telemetry", "credential.shape", "network.dns", "network.tcp",
              "network.tls", "network.latency", "network.clock", "service.health", "service.credential", "service.token", "service.models",
              "service.billing", "hub.token", "hub.reach", "hub.cache", "machine.system", "machine.cpu", "machine.files", "machine.store",
              "machine.tmp", "machine.tmp_kind", "machine.device", "terminal"}
    check("all groups", r.returncode == 0 and wanted <= set(v), wanted - set(v))
    check("offline hub", v["hub.reach"]["status"] == "skip", v["hub.reach"])
    for text, state in (("0", "off"), ("no", "off"), ("TRUE", "on"), ("on", "on")):
        v = checks(tinkc("doctor", "--json", "--offline", env=dict(quiet, TINKER_TELEMETRY=text)))
        check(f"telemetry {text}", v["config.telemetry"]["message"] == f"telemetry is {state}", v["config.telemetry"])
    r = tinkc("doctor", "--json", "--offline", "--profile", "nope", env=quiet)
    check("a profile that is not there", r.returncode == 12 and checks(r)["config.profile"]["status"] == "fail", r)
    for ends, status in ((1, "fail"), (4102444800, "ok")):
        token = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in ({"alg": "x"}, {"exp": ends}, {}))
        r = tinkc("doctor", "--json", "--offline", env=dict(quiet, TINKER_API_KEY=token))
        check(f"a token until {ends}", checks(r)["credential.expiry"]["status"] == status and token not in r.stdout, r)
    for payload, status in (("eyJleHAiOjF9", "fail"), ("eyJleHAiOjF9!", "skip"), ("eyJleHAiOjF9IA", "fail"), ("eyJleHAiOjF9" + "ICAg" * 2000, "fail")):  # {"exp":1}, blanks
        v = checks(tinkc("doctor", "--json", "--offline", env=dict(quiet, TINKER_API_KEY=f"eyJhbGciOiJ4In0.{payload}.e30")))
        check(f"a token with {payload[:20]}", v["credential.expiry"]["status"] == status, v)
    online(quiet, checks)
    broken_files(quiet, checks)
    if not shutil.which("openssl"):
        return print("skipped: openssl is not installed")
    pem = pathlib.Path(home, "server.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", pem, "-out", f"{home}/cert.pem", "-days", "2", "-subj",
                    "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True, check=True)
    pem.write_text(pem.read_text() + pathlib.Path(home, "cert.pem").read_text())
    server, secure = stub.start(pem)
    r = tinkc("doctor", "--json", "--base-url", secure, "--retry-for", "0", env=dict(quiet, SSL_CERT_FILE=f"{home}/cert.pem"))
    check("TLS version", r.returncode == 0 and checks(r)["network.tls"]["message"] == "TLSv1.3: the chain is trusted", r)
    r = tinkc("doctor", "--json", "--base-url", secure, "--retry-for", "0", env=quiet)
    v = checks(r)
    check("a chain that is not trusted", r.returncode == 12 and v["network.tls"]["status"] == "fail" and
          "self-signed certificate" in v["network.tls"]["message"].replace("self signed", "self-signed"), v["network.tls"])
    server.names.clear()
    r = tinkc("doctor", "--json", "--base-url", secure.replace("127.0.0.1", "localhost"), "--retry-for", "0",
              env=dict(quiet, SSL_CERT_FILE=f"{home}/cert.pem"))
    v = checks(r)["network.tls"]
    check("a chain of another name", r.returncode == 12 and v["status"] == "fail" and "hostname mismatch" in v["message"].lower() and
          set(server.names) == {"localhost"}, (v, server.names))


def online(quiet, checks):
    """--online asks the service whatever is configured, and says which step failed."""
    r = tinkc("doctor", "--online", "--json", env=quiet)
    v = checks(r)
    check("online", r.returncode == 0 and all(v[c]["status"] == "ok" for c in ("service.health", "service.settings", "service.credential",
          "service.models")) and v["service.models"]["message"] == "2 models are offered" and v["tool.release"]["status"] == "skip", v)
    r = tinkc("doctor", "--online", "--json", env=dict(quiet, TINKER_API_KEY="tml-rejected"))
    v = checks(r)
    check("a key that is rejected", r.returncode == 12 and v["service.health"]["status"] == "ok" and v["service.credential"]["status"] == "fail" and
          "auth status" in v["service.credential"]["hint"] and "tml-rejected" not in r.stdout and r.stderr == "", r)
    none = dict(quiet, TINKER_API_KEY=None)
    r = tinkc("doctor", "--online", "--json", env=none)
    v = checks(r)
    check("no key", r.returncode == 12 and r.stderr == "" and v["service.health"]["status"] == "ok" and
          v["credential.present"]["status"] == v["service.credential"]["status"] == "fail", r)
    r = tinkc("doctor", "--json", env=none)
    check("which is not a failure otherwise", r.returncode == 0 and checks(r)["service.credential"]["status"] == "skip", r)
    r = tinkc("doctor", "--online", "--json", env=dict(quiet, TINKER_BASE_URL="http://127.0.0.1:9"))
    v = checks(r)
    check("nobody there", r.returncode == 12 and v["network.tcp"]["status"] == v["service.health"]["status"] == "fail" and
          "refused" in v["service.health"]["message"] and v["service.health"]["hint"] and "service.models" not in v, r)
    exits(2, "doctor", "--online", "--offline", env=quiet, says="exclude each other")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        address = {"TINKER_BASE_URL": "http://127.0.0.1:%d" % silent.getsockname()[1]}
        r = tinkc("doctor", "--online", "--json", env=dict(quiet, **address))
        check("a silent service", r.returncode == 12 and checks(r)["service.health"]["status"] == "fail", r)
        r = tinkc("doctor", "--online", "--json", "--timeout", "1", env=dict(quiet, **address))
        check("--timeout", r.returncode == 124 and checks(r)["service.health"]["status"] == "fail", r)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:  # so many wait for it that the system lets nobody else through
        waiting = [socket.socket() for _ in range(4)]
        for s in waiting:
            s.setblocking(False)
            s.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        r = tinkc("doctor", "--online", "--json", "--timeout", "1", env=dict(quiet, TINKER_BASE_URL=f"http://127.0.0.1:{port}"))
        v = checks(r)["network.tcp"]
        check("nobody takes the connection", r.returncode == 124 and (v["status"], v["message"]) == ("fail", f"127.0.0.1 port {port}: Connection timed out"), r)
        for s in waiting:
            s.close()


def broken_files(quiet, checks):
    """A configuration that is broken is a finding of the doctor, and does not prevent repairing it."""
    folder = pathlib.Path(home, "broken", "tinkc")
    folder.mkdir(parents=True)
    env = dict(quiet, XDG_CONFIG_HOME=str(folder.parent), EDITOR="true")
    for text, says in (('model = "m"\n[profile\n', "config.toml:2: a table header"), ('format = "purple"\n', "config.toml:1: format: 'purple' is not one of"),
                       ('\n[defaults]\nretry_for = "soon"\n', "config.toml:3: retry_for: 'soon' is not a duration"),
                       ('[profile.x]\ntelemetry = 7\n', "config.toml:2: telemetry: '7' is not true or false"), ('api_key = "tml-x"\n', "secrets belong")):
        (folder / "config.toml").write_text(text)
        r = tinkc("doctor", "--offline", "--json", env=env)
        v = checks(r)["config.user"]
        check(f"doctor on {text!r}", r.returncode == 12 and r.stderr == "" and v["status"] == "fail" and says in v["message"] and v["hint"], r)
        exits(2, "run", "list", env=env, says=says)
    for c in (("version",), ("help", "config"), ("man", "--list"), ("completion", "bash"), ("config", "path"), ("config", "edit"), ("__complete", "--", "ru")):
        r = tinkc(*c, env=env)
        check(f"{c} with a broken file", r.returncode == 0 and r.stderr == "", r)
    (folder / "config.toml").write_text('modle = "x"\n[run.list]\nlimit = -1\n')
    v = [c for c in json.loads(tinkc("doctor", "--offline", "--json", env=env).stdout)["checks"] if c["id"] == "config.key"]
    check("what can be lived with is a warning", [c["status"] for c in v] == ["warn", "warn"] and "did you mean model" in v[0]["message"] and
          "run.list.limit: '-1' is not a whole number" in v[1]["message"], v)
    r = tinkc("checkpoint", "list", "-f", "id", env=env)
    check("also elsewhere", r.returncode == 0 and "run.list.limit" in r.stderr, r)
    exits(2, "run", "list", env=env, says="config.toml:3: run.list.limit")
    (folder / "config.toml").write_text("")
    (folder / "credentials.toml").write_text('[profile.default]\napi_key = "tml-x"\n')
    r = tinkc("doctor", "--offline", "--json", env=env)
    check("a file that others can read", r.returncode == 12 and checks(r)["config.credentials"]["hint"] == "chmod 600 it", r)
    r = tinkc("doctor", "--offline", "--json", "--config-file", "nowhere.toml", env=quiet)
    check("a file that is not there", r.returncode == 12 and "nowhere.toml: No such file" in checks(r)["config.user"]["message"], r)
    exits(2, "run", "list", env={"TINKC_TIMEOUT": "soon"}, says="TINKC_TIMEOUT: 'soon' is not a duration")
    (folder / "config.toml").write_text('[train.sft]\ntrain_mlp = "off"\ntrain_attn = 0\ntrain_unembed = "no"\n')
    (folder / "credentials.toml").chmod(0o600)
    exits(2, "train", "sft", "no.jsonl", "--dry-run", "-m", "x", env=env, says="nothing to train")
    exits(2, "train", "sft", "no.jsonl", "train_mlp=Flase", says="--train-mlp: 'Flase' is not yes or no")


def encrypted_weights():
    """Files that the program age has encrypted are decrypted with an identity of its file."""
    if not shutil.which("age-keygen"):
        return
    keys = {name: pathlib.Path(home, name + ".txt") for name in ("mine", "other")}
    for path in keys.values():
        subprocess.run(["age-keygen", "-o", path], check=True, capture_output=True)
    public = subprocess.run(["age-keygen", "-y", keys["mine"]], check=True, capture_output=True, text=True).stdout.strip()
    text = bytes(range(256)) * 600  # three chunks
    stub.FILES["adapter_model.safetensors.age"] = subprocess.run(["age", "-r", public], input=text, check=True, capture_output=True).stdout
    path, folder = "tinker://encrypted/external_weights/out", pathlib.Path(home, "age", "encrypted_external_weights_out")
    r = tinkc("checkpoint", "download", path, "-o", "age")
    check("as they are, with a hint", r.returncode == 0 and "--age-identity" in r.stderr
          and (folder / "adapter_model.safetensors.age").exists(), r)
    r = tinkc("checkpoint", "download", path, "-o", "age", "--force", "--age-identity", keys["mine"])
    check("decrypted", r.returncode == 0 and [f.name for f in folder.iterdir()] == ["adapter_model.safetensors"]
          and (folder / "adapter_model.safetensors").read_bytes() == text and "encrypted" not in r.stderr, r)
    exits(2, "checkpoint", "download", path, "-o", "age2", "--age-identity", keys["other"], says="encrypted to another key")
    exits(2, "checkpoint", "download", "tinker://run-1/weights/000020", "-o", "age2", "--age-identity", keys["mine"], says="only external weights")
    exits(9, "checkpoint", "download", "tinker://run-1/external_weights/out", "-o", "age2", "--age-identity", keys["mine"], says="is not encrypted")
    stub.FILES["adapter_model.safetensors.age"] = stub.FILES["adapter_model.safetensors.age"][:-1]
    exits(9, "checkpoint", "download", path, "-o", "age2", "--age-identity", keys["mine"], says="was changed or is incomplete")
    keys["mine"].write_text("# no key\nssh-ed25519 AAAA\n")
    exits(2, "checkpoint", "download", path, "-o", "age2", "--age-identity", keys["mine"], says="mine.txt: line 2 is not an X25519 identity")
    keys["mine"].write_text("# no key\n")
    exits(2, "checkpoint", "download", path, "-o", "age2", "--age-identity", keys["mine"], says="no age identity in it")
    exits(3, "checkpoint", "download", path, "-o", "age2", "--age-identity", "nowhere", says="nowhere: No such file")
    check("nothing is left", not pathlib.Path(home, "age2").exists())
    del stub.FILES["adapter_model.safetensors.age"]


def external_weights():
    """Services that give no archives: an address for each file, made from a training checkpoint if need be."""
    def asked(since):
        return [f"{m} {p.split('?')[0]}" for m, p, _ in server.seen[since:]]

    external = "tinker://run-1/external_weights/out"
    r = tinkc("checkpoint", "url", external)
    check("links", r.returncode == 0 and f"adapter_config.json\t{url}/file/adapter_config.json\n" in r.stdout, r)
    r = tinkc("checkpoint", "url", external, "--json")
    check("links as JSON", json.loads(r.stdout)["urls"]["adapter_model.safetensors"].endswith("/file/adapter_model.safetensors"), r)
    r = tinkc("checkpoint", "download", external, "-o", "ext")
    folder = pathlib.Path(home, "ext", "run-1_external_weights_out")
    check("external download", r.returncode == 0 and (folder / "adapter_model.safetensors").stat().st_size == 5000, r)
    exits(2, "checkpoint", "download", external, "-o", "ext2", "--archive", "x.tar", says="separate files")
    encrypted_weights()
    since = len(server.seen)
    r = tinkc("checkpoint", "download", "tinker://sealed/weights/0004", "-o", "ext")
    folder = pathlib.Path(home, "ext", "sealed_weights_0004")
    check("refused archive", r.returncode == 0 and "external weights" in r.stderr
          and (folder / "adapter_model.safetensors").stat().st_size == 5000, r)
    save = next(json.loads(b) for m, p, b in server.seen[since:] if p.endswith("/save_weights_external"))
    check("for an hour", save["ttl_seconds"] == 3600, save)
    check("then deleted", [x for x in asked(since) if x.startswith("DELETE")]
          == ["DELETE /api/v1/training_runs/export-1/checkpoints/external_weights/download"], asked(since))
    since = len(server.seen)
    exits(6, "checkpoint", "download", "tinker://sealed/sampler_weights/0004", "-o", "ext", says="training checkpoints only")
    exits(3, "checkpoint", "download", "tinker://missing/weights/0004", "-o", "ext")
    check("no run for nothing", not any("create_model" in x or "load_weights" in x for x in asked(since)), asked(since))
    log = pathlib.Path(home, "sealed-run")
    log.mkdir()
    (log / "checkpoints.jsonl").write_text(json.dumps({"state_path": "tinker://sealed/weights/0004",
                                                       "sampler_path": "tinker://sealed/sampler_weights/0004"}) + "\n")
    since = len(server.seen)
    tinkc("export", str(log), "-o", "exported-log")
    check("export from the training checkpoint", "GET /file/adapter_config.json" in asked(since), asked(since))
    r = tinkc("checkpoint", "download", "tinker://run-1/final", "-o", "plain")
    check("a path without a kind", r.returncode == 0 and pathlib.Path(home, "plain", "run-1_final").is_dir(), r)


def configuration():
    env = {"TINKER_API_KEY": None, "TINKER_BASE_URL": None}
    check("set", tinkc("config", "set", "base_url", url, env=env).returncode == 0)
    r = tinkc("auth", "login", "--api-key-file", "-", stdin="tml-secret-abcdef\n", env=env)
    check("login", r.returncode == 0, r)
    secret = pathlib.Path(home, ".config/tinkc/credentials.toml")
    check("mode", secret.stat().st_mode & 0o777 == 0o600, oct(secret.stat().st_mode))
    r = tinkc("config", "list", "--json", env=env)
    check("secrets redacted", "secret" not in r.stdout and len(json.loads(r.stdout)["values"]) == 2, r.stdout)
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
    exits(4, "auth", "login", "--api-key-file", "-", stdin="hello\n", env=env, says="not a Tinker credential")


def documentation():
    table = json.loads(tinkc("help", "--json").stdout)
    first_page = tinkc("--help").stdout
    for noun in {c["noun"] for c in table["commands"]}:
        check(f"{noun} on the first page of help", re.search(rf"^  {noun} {{2,}}\S", first_page, re.M))
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
    pages = tinkc("man", "--list").stdout.split()
    check("file formats have pages", {"tinkc-config.5", "tinkc-data.5"} <= set(pages), pages)
    text = tinkc("man", "tinkc-config.5").stdout
    check("all keys are in it", text.startswith(".Dd") and ".Dt TINKC-CONFIG 5" in text and all(f".Ql {k}" in text for k in ("base_url", "api_key", "retry_for")), text)
    folder = tempfile.mkdtemp(dir=home)
    check("all pages as files", tinkc("man", "--all", folder).returncode == 0 and
          sorted(os.listdir(folder)) == sorted(p if p.endswith(".5") else p + ".1" for p in pages), os.listdir(folder))
    for topic in ("exit-codes", "environment", "formatting", "config", "paths"):
        check(f"topic {topic}", len(tinkc("help", topic).stdout) > 100)


def completions():
    scripts = {
        "bash": 'source <(tinkc completion bash); COMP_LINE="tinkc checkpoint de"; COMP_POINT=${#COMP_LINE}; _tinkc 2> /dev/null; echo "${COMPREPLY[@]}"',
        "zsh": "autoload -U compinit; compinit -u -d $HOME/.zcd; source <(tinkc completion zsh); whence -w _tinkc; "
               "_describe() { print -l ${(P)2}; }; words=(tinkc checkpoint de); CURRENT=3; _tinkc",
        "fish": "tinkc completion fish | source; complete -C 'tinkc checkpoint de'",
    }
    for shell, script in scripts.items():
        if not shutil.which(shell):
            print(f"skipped: {shell} is not installed")
            continue
        r = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=base_env, timeout=300)
        check(f"completion in {shell}", "delete" in r.stdout and "publish" not in r.stdout, r)
    tinkc("run", "list"), tinkc("checkpoint", "list")  # a busy service is not waited for: then the cache answers
    words = lambda *w, **more: [l.split("\t")[0] for l in tinkc("__complete", "--", *w, **more).stdout.splitlines()]
    check("run ids", words("run", "info", "run-") == ["run-1", "run-2", "run-3"], words("run", "info", "run-"))
    check("checkpoint paths", "tinker://run-1/weights/000040" in words("checkpoint", "info", "tinker://run-1/w"))
    check("columns", words("run", "list", "-c", "id,mo") == ["id,model"])
    check("joined values", words("run", "list", "--format=js") == ["--format=json", "--format=jsonl"])
    check("joined columns", words("run", "list", "--columns=id,chec") == ["--columns=id,checkpoint", "--columns=id,checkpoint_time"])
    gone = {"TINKER_BASE_URL": "http://127.0.0.1:1"}
    check("no service, no noise", words("run", "info", "", env=gone) == [] and tinkc("__complete", "--", "run", "info", "", env=gone).stderr == "")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a wait for it would take minutes
        address = {"TINKER_BASE_URL": "http://127.0.0.1:%d" % silent.getsockname()[1]}
        check("a silent service is not waited for", words("run", "info", "x", env=address, timeout=30) == [])
    if shutil.which("bash"):
        line = "tinkc checkpoint info tinker://run-1/sampler_weights/fi"
        r = subprocess.run(["bash", "-c", f'source <(tinkc completion bash); COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}; _tinkc 2> /dev/null; '
                            'printf "%s\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, env=base_env, timeout=300)
        check("bash cuts at colons", r.stdout == "//run-1/sampler_weights/final\n", r)


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
    odd = pathlib.Path(home, "odd.jsonl")
    said = lambda text, *args: (odd.write_bytes(text), tinkc("data", "check", odd, *args))[1]
    line = good.encode()
    for text, level, what in ((b"\0\0\n", "error", "a value is needed"), (line.replace(b"hi", b"\\ud800"), "error", "half of a surrogate pair"),
                              (line.replace(b"hi", b"\\udc00\\ud800"), "error", "half of a surrogate"), (line.replace(b"hi", b"\xc0\x80"), "error", "not UTF-8"),
                              (line.replace(b'"hi"', b'"hi","trainable":false'), "error", "only with --train-on customized"),
                              (line.replace(b'"yo"', b'"yo","tool_calls":[5]'), "error", "message 2: a tool call must be an object"),
                              (line.replace(b'"yo"', b'"yo","tool_calls":"x"'), "error", "message 2: tool_calls must be a list"),
                              (line.replace(b'"yo"', b'"yo","tool_calls":[{"function":{"name":"f","arguments":{}}}]'), "warning", "should be a JSON text"),
                              ('{"\u009b31m":1}\n'.encode(), "error", "\\u009b31m")):
        r = said(text)
        check(f"data check on {text}", r.returncode == (12 if level == "error" else 0) and r.stdout.startswith(f"{odd}:1: {level}: ") and what in r.stdout, r)
    check("a pair of surrogates is fine", said(line.replace(b"hi", b"\\ud83d\\ude00")).returncode == 0)
    check("counted as one", ": 1 conversation, 0 errors, 0 warnings\n" in said(line).stderr)
    marked = line.replace(b'"hi"', b'"hi","trainable":false').replace(b'"yo"', b'"yo","trainable":true')
    check("customized", said(marked, "--train-on", "customized").returncode == 0)
    check("its numbers", json.loads(tinkc("data", "stats", odd, "--train-on", "customized", "--json").stdout)["conversations"] == 1)
    if pathlib.Path("models/nano/tokenizer.json").exists():
        model = ("-m", pathlib.Path("models/nano").resolve())
        thinking = line.replace(b"yo", b"<think>a</think>yo")
        check("reasoning for a renderer that has none", "<think>" in said(thinking, *model, "--renderer", "qwen3_disable_thinking").stdout)
        check("and for one that has", said(thinking, *model, "--renderer", "qwen3").stdout == "")
        parts = line.replace(b'"yo"', b'[{"type":"text","text":"a"},{"type":"image","image":"b"}]')
        check("whose line it is", ":1: error: chat template: line " in said(parts, *model).stdout)
    blank = pathlib.Path(home, "blank.jsonl")
    blank.write_text("\n \r\n")
    r = tinkc("data", "check", blank)
    check("blank lines alone", r.returncode == 12 and "only blank lines" in r.stdout, r)
    many_threads(good)
    share = '[{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]'
    r = tinkc("data", "convert", "-", "--from", "sharegpt", stdin=share)
    check("convert", json.loads(r.stdout)["messages"][1] == {"role": "assistant", "content": "b"}, r)


def many_threads(good):
    """What is said of a file does not depend on how many threads read it, nor on where its blocks end."""
    path, other = pathlib.Path(home, "many.jsonl"), pathlib.Path(home, "other.jsonl")
    long = json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "word " * 90000}]}) + "\n"
    path.write_text("\ufeff" + "".join("{bad\n" if i % 97 == 5 else "\n" if i % 89 == 3 else '{"messages":[{"role":"user","content":"x"}]}\n' if i % 83 == 0
                                       else long if i % 4001 == 7 else good.replace("yo", f"number {i}") for i in range(20000)), encoding="utf-8")
    other.write_text('{"messages":[]}\n' + good)
    wanted = [i + 1 for i in range(20000) if i % 97 == 5 or (i % 89 != 3 and (i % 83 == 0 or i % 4001 == 7))]
    everywhere = os.sched_getaffinity(0)
    for command in (("data", "check", "--max-length", "9000"), ("data", "check", "--json", "--max-length", "9000"), ("data", "stats", "--json")):
        for model in ((), ("-m", str(pathlib.Path("models/nano").resolve()))):
            if model and not pathlib.Path(model[1], "tokenizer.json").exists():
                continue
            answers = []
            for cores in (everywhere, {min(everywhere)}):
                os.sched_setaffinity(0, cores)
                answers.append(tinkc(*command, *model, path, other))
            os.sched_setaffinity(0, everywhere)
            a, b = answers
            check(f"{command} {model} on all cores", (a.returncode, a.stdout, a.stderr) == (b.returncode, b.stdout, b.stderr), (a.stderr, b.stderr))
            lines = sorted({int(l.split(":")[1]) for l in a.stdout.splitlines()}) if a.stdout.startswith(str(path)) else wanted
            check(f"{command} {model} names the lines", set(lines) >= {i for i in wanted if (i - 1) % 4001 != 7}, len(lines))
    r = tinkc("train", "sft", path, other, "--local", "--dry-run", "--batch-size", "8", env={"TINKER_API_KEY": None, "TINKER_BASE_URL": None})
    bad = [l for l in r.stderr.splitlines() if ".jsonl:" in l]
    check("the first broken lines of all files", r.returncode == 6 and [int(l.split(":")[1]) for l in bad] == [i * 97 + 6 for i in range(20)] and
          "... and 188 more" in r.stderr and "208 lines cannot be used" in r.stderr, (bad[-3:], r.stderr[-200:]))
    r = tinkc("train", "sft", other, "--local", "--dry-run", "--json", env={"TINKER_API_KEY": None, "TINKER_BASE_URL": None})
    error = json.loads(r.stderr)["error"]
    check("as JSON with the error", r.returncode == 6 and [(p["path"], p["line"]) for p in error["problems"]] == [(str(other), 1)], r)


def lists():
    many = {"TINKER_PROJECT_ID": "many"}
    before = len(server.seen)
    r = tinkc("run", "list", "--limit", "0", "--json", env=many)
    pages = [s[1] for s in server.seen[before:] if s[1].startswith("/api/v1/training_runs?")]
    check("all pages", json.loads(r.stdout)["shown_count"] == 250, r)
    check("pages of 100", len(pages) == 3 and all("limit=100" in p for p in pages[:2]), pages)
    check("no progress off a terminal", r.stderr == "", r.stderr)
    before = len(server.seen)
    r = tinkc("run", "list", "--limit", "130", "--offset", "10", "-f", "id", env=many)
    check("limit and offset", r.stdout.split()[0] == "many-10" and len(r.stdout.split()) == 130, r.stdout[:80])
    r = tinkc("run", "list", "-f", "table", env=dict(many, COLUMNS="80"))
    check("more are named", r.stdout.startswith("20 training runs (230 more not shown, use --limit to see more)"), r)
    r = tinkc("run", "list", "--limit", "2", "--filter", "training_run_id~*9", "-f", "id", env=many)
    check("the limit counts what passes", r.stdout.split() == ["many-9", "many-19"], r)
    exits(2, "run", "list", "--filter", "nonsense", says="--filter")
    r = tinkc("checkpoint", "list", "--sort", "size_bytes", "--reverse", "-f", "id")
    check("sorted as numbers", r.stdout.split() == [f"tinker://run-1/{n}" for n in ("weights/000040", "sampler_weights/final", "weights/000020")], r)
    check("sessions filtered", tinkc("session", "list", "--filter", "session_id=s-2", "-f", "id").stdout == "s-2\n")
    check("columns help", "owner\tOwner" in tinkc("run", "list", "--columns", "help").stdout)
    for style, wanted in (("iso", "2025-01-02T03:04:05Z"), ("epoch", "1735787045"),
                          ("local", "2025-01-02 03:04:05 +0000"), ("relative", "2025-01-02")):
        r = tinkc("run", "list", "-c", "id,updated", "--time", style)
        check(f"--time {style}", f"run-1\t{wanted}\n" in r.stdout, r.stdout)
    check("options before the verb", tinkc("checkpoint", "--run-id", "run-1", "list", "-f", "id").returncode == 0)
    p = subprocess.Popen([build / "tinkc", "run", "list"], env=dict(base_env, TINKER_PROJECT_ID="slow"),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check("it asks", server.slow.wait(120))
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    check("SIGINT ends a list with 130", p.returncode == 130 and out == "", (p.returncode, err))


def compatibility():
    tinker = pathlib.Path(home, "bin", "tinker")
    tinker.parent.mkdir(exist_ok=True)
    tinker.symlink_to(build / "tinkc")
    p1, missing = "tinker://run-1/weights/000020", "tinker://missing/weights/x"

    def old(*args, **more):
        whole = dict(base_env, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", ""))
        return subprocess.run([tinker, *args], capture_output=True, text=True, env=whole, timeout=300, cwd=home, **more)
    check("table in a pipe", old("run", "list").stdout.startswith("3 training runs\n"))
    check("failures are 1", old("run", "info", "missing").returncode == 1)
    check("usage stays 2", old("run", "list", "--nonsense").returncode == 2)
    r = old("checkpoint", "delete", p1, "-y", "-f", "json")
    check("delete on one line", r.stdout == '{"deleted_count": 1, "failed": []}\n', r)
    check("a deletion that failed is 0, as there", old("checkpoint", "delete", p1, missing, "-y").returncode == 0)
    r = old("checkpoint", "publish", p1, "-f", "json")
    check("publish is silent", (r.returncode, r.stdout, r.stderr) == (0, "", ""), r)
    r = old("-f", "json", "run", "list")
    check("no counts", list(json.loads(r.stdout)) == ["runs"], r.stdout[:80])
    check("data check is 1", old("data", "check", "/dev/null").returncode == 1)


def json_everywhere():
    """Commands without a result of their own confirm in JSON; nothing else is on stdout."""
    env = {"XDG_CONFIG_HOME": f"{home}/json-config"}
    good = '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}\n'
    pathlib.Path(home, "j.jsonl").write_text("\ufeff" + good * 3, encoding="utf-8")
    logs = pathlib.Path(home, "json-log")
    logs.mkdir()
    (logs / "timing_spans.jsonl").write_text('{"step": 3, "spans": [{"name": "a", "duration": 0.5, "wall_start": 10.0, "wall_end": 10.5}]}\n')

    def answer(*args, stdin=""):
        r = tinkc(*args, "--json", env=env, stdin=stdin)
        try:
            value = json.loads(r.stdout)
        except json.JSONDecodeError:
            value = None
        check(f"{args} --json", r.returncode == 0 and value is not None and r.stderr == "", r)
        return value
    check("set", answer("config", "set", "model", "m") == {"key": "model", "value": "m", "profile": "default"})
    check("unset", answer("config", "unset", "model") == {"key": "model", "value": None, "profile": "default"})
    check("use", answer("config", "use-profile", "default") == {"profile": "default"})
    check("login", answer("auth", "login", "--api-key-file", "-", stdin="tml-abcdefgh\n") == {"profile": "default", "kind": "api_key"})
    check("logout", answer("auth", "logout") == {"profile": "default", "kind": "none"})
    check("sync", answer("audit", "sync", "-o", "json-audit", "--backfill-days", "0")["days"][0]["entries"] == 1)
    check("trace", answer("logs", "trace", logs, "-o", "json-trace.json") == {"path": "json-trace.json", "events": 1})
    check("split", [(f["path"], f["conversations"]) for f in answer("data", "split", "j.jsonl", "--test", "1", "-o", "json-split")["files"]] ==
          [("json-split/test.jsonl", 1), ("json-split/train.jsonl", 2)])
    check("convert", answer("data", "convert", "j.jsonl", "--from", "openai", "-o", "json-converted") == {"path": "json-converted", "conversations": 3})
    check("what it wrote", pathlib.Path(home, "json-converted").read_text().replace(" ", "") == good * 3)
    check("preview", answer("data", "preview", "j.jsonl", "-n", "2")["examples"][1] == dict(json.loads(good), line=2))
    check("script", answer("completion", "bash")["script"].startswith("_tinkc()"))
    check("page", answer("man", "run")["text"].startswith(".Dd"))
    check("pages", "tinkc-run" in answer("man", "--list")["pages"])
    check("move", answer("session", "move", "s-1", "--project", "p", "-y") == {"session_id": "s-1", "project_id": "p"})
    check("convert says so", tinkc("data", "convert", "j.jsonl", "--from", "openai", "-o", "json-converted").stderr == "json-converted: 3 conversations\n")
    r = tinkc("data", "convert", "-", "--from", "openai", "-o", "json-not", stdin=good + "{bad\n" + '{"x":1}\n')
    check("convert names what it cannot", r.returncode == 6 and "-:2: not JSON" in r.stderr and "-:3: not of this form" in r.stderr and
          not pathlib.Path(home, "json-not").exists(), r)
    pathlib.Path(home, "j.jsonl").write_text("{bad\n" + good)
    exits(6, "data", "preview", "j.jsonl", "-n", "1", says="j.jsonl:1: not JSON")
    if pathlib.Path("models/nano/tokenizer.json").exists():
        nano = pathlib.Path("models/nano").resolve()
        pathlib.Path(home, "j.jsonl").write_text(good)
        e = answer("data", "preview", "j.jsonl", "-m", nano)["examples"][0]
        check("rendered", len(e["tokens"]) == len(e["weights"]) and max(e["weights"]) == 1 and "yo" in e["text"], e)
        v = answer("tokenizer", "chat-template", "-", "-m", nano, stdin='[{"role":"user","content":"x"}]')
        check("what ends an answer", v["stop"] == ["<|im_end|>"], v)


def odd_bytes():
    """Names and texts that are not UTF-8: refused, or shown escaped, and never left out."""
    name = os.fsencode(home) + b"/odd\xff.jsonl"
    with open(name, "wb") as f:
        f.write(b'{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}\n')
    nano = pathlib.Path("models/nano").resolve()
    r = tinkc("data", "check", name, "--json")
    check("a file's name in JSON", json.loads(r.stdout)["files"][0]["path"].endswith("odd\\xff.jsonl"), r)
    r = tinkc("data", "check", name + b"x", "--json")
    check("and in an error", "odd\\xff.jsonlx: No such file" in json.loads(r.stderr)["error"]["message"], r)
    exits(2, "config", "set", "model", b"a\xff", says="not UTF-8")
    exits(2, "run", "list", "--filter", b"id=\xff", says="--filter: 'id=\\xff' is not UTF-8")
    if (nano / "tokenizer.json").exists():
        env = {"TINKER_API_KEY": None, "TINKER_BASE_URL": None, "TINKC_NANO": str(nano)}
        r = tinkc("tokenizer", "count", "-m", nano, name, name)
        check("counted", [l.split("\t")[1].endswith("odd\\xff.jsonl") for l in r.stdout.splitlines()[1:3]] == [True, True], r)
        exits(6, "sample", "--local", b"a\xff", env=env, says="not UTF-8")
        exits(2, "sample", "--local", "-s", b"a\xff", "x", env=env, says="--system: 'a\\xff' is not UTF-8")
        exits(6, "sample", "--local", stdin="a\0b", env=env, says="not UTF-8 text")
        exits(6, "chat", "--local", stdin="", env=env, says="the prompt is empty")
        r = tinkc("chat", "--local", "--temperature", "0", stdin="What is 7 + 5?\n", env=env)
        check("the shell's line end is not part of a message", r.stdout == "12\n", r)
    for folder in ("", "relative"):
        r = tinkc("config", "path", "--json", env={"HOME": folder})
        check(f"HOME={folder!r} is none", json.loads(r.stdout)["user"] is None, r)
    exits(2, "config", "set", "model", "m", env={"HOME": ""}, says="no configuration file")


def signals():
    """Wherever a signal comes, the exit code is that of the signal."""
    for args in (("data", "check", "-"), ("tokenizer", "count"), ("checkpoint", "publish", "-")):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            p = subprocess.Popen([build / "tinkc", *args], env=dict(base_env, TINKC_NANO=str(pathlib.Path("models/nano").resolve())), cwd=home,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            p.stdin.write(b"\n" * 200000)  # more than a pipe holds: it is reading by now
            p.send_signal(number)
            out, err = p.communicate(timeout=120)
            check(f"{args} and signal {number}", p.returncode == code and out == err == b"", (p.returncode, out, err))


def on_terminal(*args, typed=b"", term="xterm", until=b"]: "):
    """Runs under a pseudo-terminal; what was on the screen, and the exit code."""
    env = dict(base_env, TERM=term, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", ""))
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execve(build / "tinkc", ["tinkc", *args], env)
    screen = b""
    signal.signal(signal.SIGALRM, lambda *a: os.kill(pid, signal.SIGKILL))
    signal.alarm(300)
    try:
        while until and until not in screen:
            screen += os.read(fd, 4096)
        os.write(fd, typed)
        while chunk := os.read(fd, 4096):
            screen += chunk
    except OSError:
        pass
    os.close(fd)
    signal.alarm(0)
    return screen.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def large_model(nano, model):
    """A copy of nano with a tensor of more than 1 GB that nothing uses, a hole in the file: nothing of it is cached."""
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(nano, model)
    weights = model / "model-00002-of-00002.safetensors"
    data = weights.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, body = json.loads(data[8:8 + size]), data[8 + size:]
    head["hole"] = {"dtype": "U8", "shape": [1200 << 20], "data_offsets": [len(body), len(body) + (1200 << 20)]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(weights, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + body)
        f.truncate(8 + len(text) + len(body) + (1200 << 20))


def loading():
    """The bar of a model above 1 GB, and one that does not fit."""
    nano, model = here.parent.parent / "models/nano", pathlib.Path(home, "large")
    if not (nano / "config.json").exists() or not (build / "libtinkc-engine.so").exists():
        return
    large_model(nano, model)
    ask = ("sample", "--local", "-m", "./large", "--temperature", "0", "What is 7 + 5?")
    screen, code = on_terminal(*ask, until=None)
    bar = r"loading the weights [^\r]*1\.[0-9] GB"
    check("a bar while large weights are read", code == 0 and re.search(bar, screen) and "12" in screen, screen)
    large_model(nano, model)
    screen, code = on_terminal("serve", "./large", "--port", "0", "--store", "served", until=b"serving; to use it", typed=b"\x03")
    check("and before a server listens", code == 0 and re.search(bar + ".*serving; to use it", screen, re.DOTALL), (code, screen))
    shutil.rmtree(model)
    shutil.copytree(nano, model)
    screen, code = on_terminal(*ask, until=None)
    check("none for a small model", code == 0 and "loading the weights" not in screen and "12" in screen, screen)
    with open(model / "more.safetensors", "wb") as f:
        f.truncate(4 << 40)
    for args in (("sample", "--local", "-m", "./large", "hi"), ("serve", "./large", "--port", "0", "--store", "served")):
        exits(1, *args, says="does not fit into memory: its weights are 4.0 TB (43980")
    shutil.rmtree(model)


def await_line_mode(fd, lines):
    """Until the program on a terminal takes lines (or keys): on a terminal of its own it is the only one that changes this."""
    while bool(termios.tcgetattr(fd)[3] & termios.ICANON) != lines:
        time.sleep(0.01)


def type_during_answer(question, typed):
    """A chat on a terminal with a server that is stopped from question to keys: the screen and the exit code."""
    p = subprocess.Popen([build / "tinkc", "serve", "--port", "0", "--store", f"{home}/held"], env=base_env, cwd=home, text=True, stderr=subprocess.PIPE)
    while "TINKER_BASE_URL" not in (line := p.stderr.readline()):
        pass
    env = dict(base_env, TERM="xterm", TINKER_BASE_URL=line.split("=")[1].strip())
    while "to look at it" not in p.stderr.readline():
        pass
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execve(build / "tinkc", ["tinkc", "chat", "-m", "nano", "--temperature", "0", "--no-history"], env)
    screen = b""
    signal.signal(signal.SIGALRM, lambda *a: os.kill(pid, signal.SIGKILL))
    signal.alarm(200)
    try:
        while b"> " not in screen:
            screen += os.read(fd, 4096)
        await_line_mode(fd, False)
        p.send_signal(signal.SIGSTOP)
        os.write(fd, b"%")
        while b"%" not in screen:  # the line is being read
            screen += os.read(fd, 4096)
        os.write(fd, b"\x7f\0" + question)  # Ctrl-Space on the empty line
        await_line_mode(fd, True)
        os.write(fd, typed)
        p.send_signal(signal.SIGCONT)
        while chunk := os.read(fd, 4096):
            screen += chunk
    except (OSError, termios.error):
        pass
    os.close(fd)
    signal.alarm(0)
    p.kill()
    p.communicate()
    return screen.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def chats():
    nano = here.parent.parent / "models/nano"
    if not (nano / "config.json").exists() or not (build / "libtinkc-engine.so").exists():
        return
    screen, code = type_during_answer(b"What is 7 + 5?\r", b"\x04")
    check("Ctrl-D during an answer leaves after it", code == 0 and re.search(r"5\?\r\n[^\n]*12\r\n", screen), (code, screen))
    env = {"TINKER_API_KEY": None, "TINKER_BASE_URL": None, "TINKC_NANO": str(nano)}
    ask = ("chat", "--local", "--temperature", "0", "--max-tokens", "24", "--json")
    lines = 'What is 7 + 5?\n\n"""\nWhat is\n2 + 3?\n"""\nSpell \\\ncat.'
    r = tinkc(*ask, "--turns", "--save", "turns.json", stdin=lines, env=env)
    answers = [json.loads(l) for l in r.stdout.splitlines()]
    check("--turns: an answer for each message", r.returncode == 0 and answers[0]["content"] == "12" and len(answers) == 3, r)
    said = [m["content"] for m in json.loads(pathlib.Path(home, "turns.json").read_text())["messages"] if m["role"] == "user"]
    check("of one line or several", said == ["What is 7 + 5?", "What is\n2 + 3?", "Spell \ncat."], said)
    r = tinkc(*ask, "--save", "whole.json", stdin=lines, env=env)
    said = [m["content"] for m in json.loads(pathlib.Path(home, "whole.json").read_text())["messages"] if m["role"] == "user"]
    check("without it, all is one message", said == [lines], said)
    r = tinkc(*ask, "--turns", stdin="/save stolen\n", env=env)
    check("a line of a pipe is never a command", r.returncode == 0 and r.stdout and not pathlib.Path(home, "stolen").exists(), r)
    exits(6, *ask[:-1], "--turns", stdin="\n \n", env=env, says="the prompt is empty")
    exits(6, *ask[:-1], "--turns", stdin="a\0b\nWhat is 7 + 5?\n", env=env, says="not UTF-8 text")
    p = subprocess.Popen([build / "tinkc", *ask, "--turns"], env={k: v for k, v in dict(base_env, **env).items() if v}, cwd=home, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write("What is 7 + 5?\n")
    p.stdin.flush()
    check("answered before the input ends", json.loads(p.stdout.readline())["content"] == "12")
    p.terminate()
    check("a signal ends the wait for a line", p.wait(timeout=200) == 143, p.communicate())
    p.communicate()


def prompts():
    p1 = "tinker://run-1/weights/000020"
    for typed, code in ((b"n\n", 11), (b"\n", 11), (b"\x04", 11), (b"YES\n", 0), (b"what\ny\n", 0), (b"\x03", 130)):
        screen, got = on_terminal("checkpoint", "delete", p1, typed=typed)
        check(f"prompt answered {typed}", got == code and ("cancelled" in screen) == (code == 11), (got, screen))
    for term in ("xterm", "dumb"):
        screen, got = on_terminal("checkpoint", "download", "tinker://run-1/sampler_weights/final", "-o", f"on-{term}", term=term)
        check(f"progress on {term}", got == 0 and ("\033" in screen) == (term == "xterm"), (got, screen))
    screen, got = on_terminal("session", "move", "s-1", "--project", "p", typed=b"n\n")
    check("move declined", got == 11 and "cancelled" in screen, (got, screen))
    exits(2, "session", "move", "s-1", "--project", "p", says="--yes")
    stored = pathlib.Path(home, ".config/tinkc/credentials.toml")
    before = stored.read_text() if stored.exists() else None
    for typed, code, says in ((b"tml-typed\n", 0, "stored in profile typed"), (b"tml-typed\r\n", 0, "stored in profile typed"), (b"seen?\n", 4, "not a Tinker credential"),
                              (b"\x04", 11, "cancelled"), (b"\x03", 130, "")):
        stored.unlink(missing_ok=True)
        screen, got = on_terminal("auth", "login", "--no-check", "--profile", "typed", typed=typed, until=b"shown): ")
        check(f"a key typed {typed}", got == code and says in screen and "typed\r" not in screen.replace("profile typed", "") and "seen?" not in screen, (got, screen))
        check(f"stored {typed}", stored.exists() == (code == 0) and (code or 'api_key = "tml-typed"' in stored.read_text()), stored)
    stored.unlink(missing_ok=True)
    if before is not None:
        stored.write_text(before)
        stored.chmod(0o600)


def more_commands():
    r = tinkc("api", "GET", "/api/v1/training_runs", "-F", "project_id=many", "-F", "limit=100", "--paginate")
    parts = [json.loads(l) for l in r.stdout.splitlines()]
    check("api --paginate", [p["cursor"]["offset"] for p in parts] == [0, 100, 200], r.stdout[:200])
    exits(2, "api", "GET", "/x", "-F", "novalue", says="K=V")
    r = tinkc("api", "GET", "/api/v1/training_runs/missing")
    check("api 404", r.returncode == 3 and "no such run" in r.stdout, r)
    r = tinkc("audit", "sync", "-o", "audit/log", "--backfill-days", "2")
    files = sorted(pathlib.Path(home, "audit/log").iterdir())
    check("audit sync", r.returncode == 0 and len(files) == 3 and
          list(json.loads(files[0].read_text())) == ["event", "model_id", "purpose", "timestamp", "tinker_path"], r)
    before = len(server.seen)
    tinkc("audit", "sync", "-o", "audit/log", "--backfill-days", "2")
    check("past days once", len([s for s in server.seen[before:] if "/audit" in s[1]]) == 1)
    r = tinkc("session", "export-trace", "s-1", "-o", "-")
    check("trace to stdout", r.stdout == "the trace", r)
    r = tinkc("session", "export-trace", "s-1", "--json")
    check("trace to a file", json.loads(r.stdout)["file_size_bytes"] == 9 and pathlib.Path(home, "s-1.pftrace").exists(), r)
    r = subprocess.run([build / "tinkc", "checkpoint", "download", "tinker://run-1/sampler_weights/final", "--archive", "-"],
                       env=base_env, cwd=home, capture_output=True)
    check("archive to stdout", r.returncode == 0 and len(r.stdout) > 100000 and b"adapter_config.json" in r.stdout[:100], r.stderr)
    shell = lambda tail: subprocess.run(["bash", "-c", f"tinkc checkpoint download tinker://run-1/sampler_weights/final {tail}"],
                                        env=base_env, cwd=home, capture_output=True, text=True)
    check("-o - likewise", shell("-o - | cmp - <(tinkc checkpoint download tinker://run-1/sampler_weights/final --archive -)").returncode == 0)
    r = shell("--archive - > /dev/full")
    check("a full stdout", r.returncode == 1 and "standard output: No space left" in r.stderr, r)
    r = shell("--archive - >&-")
    check("a closed stdout", r.returncode == 1 and "standard output: Bad file descriptor" in r.stderr, r)
    r = shell("--archive - | head -c 10 > /dev/null; exit ${PIPESTATUS[0]}")
    check("a reader that leaves", r.returncode in (0, 141) and not r.stderr, r)
    for verb, more, left in (("export", ("-o", "exported", "--base", "nano"), []),
                             ("download", (), ["run-1_weights_stalled.partial", "run-1_weights_stalled.partial.state"])):
        folder = tempfile.mkdtemp(dir=home)
        server.slow.clear()
        p = subprocess.Popen([build / "tinkc", "checkpoint", verb, "tinker://run-1/weights/stalled", *more], env=base_env,
                             cwd=folder, text=True, stderr=subprocess.PIPE)
        server.slow.wait(120)
        if left:
            await_files(folder)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=120)
        check(f"{verb} that is interrupted", p.returncode == 130 and sorted(os.listdir(folder)) == left and
              (verb == "export" or "run the same command again" in err), (p.returncode, os.listdir(folder), err))
    check("nothing left behind", not [n for n in os.listdir(home) if "partial" in n], os.listdir(home))
    for kind in ("all", "checkpoints", "projects", "teams", "organizations"):
        since = len(server.seen)
        r = tinkc("audit", "list", "--type", kind)
        check(f"audit of {kind}", r.returncode == 0 and [f"event_type={kind}" in s[1] for s in server.seen[since:] if "audit" in s[1]] == [True], r)
    for compat, wanted in (("", "2026-07-13T04:00:00Z"), ("1", "2026-07-13T04:00:00Z"), ("0.25.0", "not said")):
        r = tinkc("billing", "usage", "2026-07-13", "2026-07-14", "--json", env={"TINKC_COMPAT": compat})
        check(f"costs are known until then, compat '{compat}'", json.loads(r.stdout).get("cost_data_through", "not said") == wanted, r)
    r = tinkc("billing", "usage", "-7d", "--json")
    check("billing of a week", r.returncode == 0, r)
    for how in (("-f", "table"), ("-f", "csv"), ()):
        check(f"booleans {how}", "True" in tinkc("billing", "usage", "2026-07-13", "2026-07-14", *how).stdout)
    r = tinkc("whoami", "--json")
    check("a plain key names nobody", r.returncode == 0 and json.loads(r.stdout) == {"user_urn": None, "org_urn": None, "email": None}, r)
    lines = tinkc("run", "list", "--project", "many", "--limit", "0", "-f", "jsonl").stdout.splitlines()
    check("json lines of all pages", [json.loads(l)["training_run_id"] for l in lines] == [f"many-{i}" for i in range(250)], lines[:3])
    lines = tinkc("run", "list", "--project", "many", "--limit", "0", "-f", "jsonl", "--reverse").stdout.splitlines()
    check("ordered ones wait for the rest", json.loads(lines[0])["training_run_id"] == "many-249")
    check("limit holds", len(tinkc("run", "list", "--project", "many", "--limit", "120", "-f", "jsonl").stdout.splitlines()) == 120)
    exits(2, "run", "list", "-c", "nope", says="unknown column", env={"TINKER_BASE_URL": "http://127.0.0.1:1"})
    exits(2, "run", "list", "--columns=", says="unknown column")
    exits(2, "run", "list", "--fil", "x=1", says="did you mean --filter?")
    exits(2, "config", "set", "color", "purple", says="not one of auto|always|never")
    exits(2, "serve", "--port", "99999", says="--port", env={"XDG_DATA_HOME": home + "/served"})
    exits(2, "serve", "--host", "0.0.0.0", says="--auth-token-file", env={"XDG_DATA_HOME": home + "/served"})
    keys = pathlib.Path(home, "server-keys")
    keys.write_text("# ours\ntml-one requests=100\ntml-two\n")
    keys.chmod(0o644)
    exits(2, "serve", "--port", "0", "--auth-token-file", keys, says="other users of this machine", env={"XDG_DATA_HOME": home + "/served"})
    for option, name in (("--max-context", "max_context"), ("--max-batch-tokens", "max_batch_tokens"), ("--max-adapters", "max_models")):
        exits(2, "serve", option, "99999999999", says=f"setting {name}: '99999999999' is not a whole number from 0 to", env={"XDG_DATA_HOME": home + "/served"})
        exits(2, "serve", option, "-1", says=option, env={"XDG_DATA_HOME": home + "/served"})
    r = exits(8, "run", "list", "--retry-for", "3", "-vv", says="connection refused", env={"TINKER_BASE_URL": "http://127.0.0.1:1"})
    check("it gives up when asked to, and says meanwhile why it waits", waited(r, 2000, 3000) and "trying again" in r.stderr, r)
    check("compat version", tinkc("version", "--json", env={"TINKC_COMPAT": "1"}).stdout.startswith("tinker 0."))
    info = json.loads(tinkc("checkpoint", "info", "tinker://run-1/sampler_weights/final", "--json", env={"TINKC_COMPAT": "1"}).stdout)
    check("compat adds no keys", list(info)[-2:] == ["is_lora", "lora_rank"] and "base_model" not in info, info)
    logs = pathlib.Path(home, "traced")
    logs.mkdir()
    r = exits(3, "logs", "trace", logs, says="neither trace_events.jsonl")
    (logs / "timing_spans.jsonl").write_text('{"step": 3, "spans": [{"name": "time/step", "duration": 0.5, "wall_start": 10.0, "wall_end": 10.5}]}\n')
    r = tinkc("logs", "trace", logs, "-o", "-")
    event = json.loads(r.stdout)["traceEvents"][0]
    check("trace of spans", (event["name"], event["ph"], event["ts"], event["dur"], event["args"]) == ("time/step", "X", 1e7, 5e5, {"step": 3}), r)
    (logs / "trace_events.jsonl").write_text('{"name":"a","ph":"B","ts":1}\n{"name":"a","ph":"E","ts":2}\n{"torn')
    r = tinkc("logs", "trace", logs)
    check("trace of events", [e["ph"] for e in json.loads((logs / "trace.json").read_text())["traceEvents"]] == ["B", "E"] and not r.stdout, r)
    r = tinkc("auth", "status", "--json")
    row = json.loads(r.stdout)["profiles"][0]
    check("auth status", r.returncode == 0 and list(row) == ["profile", "base_url", "source", "kind", "valid", "user_urn",
          "email", "expires_at"] and row["valid"] and row["source"] == "TINKER_API_KEY", r)
    r = tinkc("auth", "status")
    check("its columns", r.stdout.splitlines()[0] == "Profile\tUser\tSource\tExpires\tURL", r)
    r = tinkc("auth", "status", env={"TINKER_API_KEY": None})
    check("no credential", r.returncode == 4 and "auth login" in r.stderr, r)
    r = tinkc("doctor", "--json")
    ids = {c["id"]: c["status"] for c in json.loads(r.stdout)["checks"]}
    check("doctor", r.returncode == 0 and ids["service.health"] == "ok" and ids["network.clock"] == "ok" and
          ids["config.telemetry"] == "ok" and ids["tool.path"] == "ok", r)
    check("doctor walks the way", ids["network.dns"] == ids["network.tcp"] == "ok" and ids["network.tls"] == "skip", ids)
    r2 = tinkc("doctor", "--json", "--base-url", "http://no-such-host.invalid", "--retry-for", "0")
    bad = {c["id"]: c["status"] for c in json.loads(r2.stdout)["checks"]}
    check("doctor: a name that is not known", r2.returncode == 12 and bad["network.dns"] == "fail" and "network.tcp" not in bad, r2)
    check("no secret in doctor", "tml-test" not in r.stdout, r.stdout)
    r = tinkc("doctor", "--base-url", "http://127.0.0.1:1", "--retry-for", "0")
    check("doctor finds it", r.returncode == 12 and "fail\tservice.health" in r.stdout, r)
    check("env flag off", tinkc("data", "check", "/dev/null", env={"TINKC_QUIET": "0"}).stderr != "")
    plugin = pathlib.Path(home, "bin", "tinkc-hello")
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text('#!/bin/sh\necho "$1 $TINKC_PROFILE $TINKER_BASE_URL"\n')
    plugin.chmod(0o755)
    path = {"PATH": f"{home}/bin:{base_env['PATH']}"}
    check("plugin", tinkc("hello", "you", env=path).stdout == f"you default {url}\n")
    check("plugin listed", "  hello\n" in tinkc("help", env=path).stdout)


def model_files():
    """model info of what lies on the disk: a GGUF file, and what is not a model."""
    folder = pathlib.Path(home, "models-here")
    (folder / "peft").mkdir(parents=True)
    (folder / "peft/adapter_config.json").write_text("{}")
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(96))
    exits(2, "model", "info", "./peft", cwd=folder, says="./peft is a PEFT adapter, not a model\nhint: name its base model with -m")
    exits(3, "model", "info", "./none", cwd=folder, says="there is no such folder: ./none")
    exits(3, "model", "info", "none.gguf", cwd=folder, says="there is no such file: none.gguf")
    exits(3, "model", "info", ".", cwd=folder, says=". is neither a model nor a log directory")
    r = tinkc("model", "info", "broken.gguf", "--json", cwd=folder)
    info = json.loads(r.stdout or "{}")
    check("a GGUF file that cannot be used says why", r.returncode == 0 and info["family"] == "GGUF file" and
          not info["supported"] and "broken.gguf" in info["reason"] and info["weight_bytes"] == 100, r)
    r = tinkc("model", "info", "broken.gguf", "-f", "table", cwd=folder)
    check("what is not known of a file has no row", "Runs Here" in r.stdout and "Parameters" not in r.stdout and
          "token of a sequence" not in r.stdout, r.stdout)


def names():
    """Runs go by the names that people gave: first in tables, nowhere in what programs read; a list without any has no column."""
    data = pathlib.Path(home, "named")
    (data / "tinkc/store").mkdir(parents=True)
    lines = []
    for name, run in (("faq", "run-1"), ("faq", "run-3"), ("gone", "run-2")):
        folder = data / run / name
        folder.mkdir(parents=True)
        lines.append(json.dumps({"dir": str(folder), "run": run}))
    folder.rmdir()
    (data / "tinkc/store/runs.jsonl").write_text("\n".join(lines) + "\n")
    env = {"XDG_DATA_HOME": str(data), "COLUMNS": "200"}
    lists = ("run", "list"), ("checkpoint", "list", "--run-id", "run-1")
    for args, header, first in zip(lists, ("Name ", "Run "), ("faq   run-1 ", "faq  sampler_weights/")):
        named, plain = (tinkc(*args, "-f", "table", env=e).stdout.splitlines() for e in (env, {"COLUMNS": "200"}))
        check(f"names first in {args}", named[1].startswith(header) and named[3].startswith(first), named)
        check(f"no column without names in {args}", "".join(named[1].split()[1:]) == "".join(plain[1].split()), plain)
        for form in ("json", "jsonl", "tsv", "csv", "id"):
            check(f"{form} of {args} has no names", tinkc(*args, "-f", form, env=env).stdout == tinkc(*args, "-f", form).stdout)
    rows = tinkc("run", "list", "-f", "table", env=env).stdout.splitlines()[3:]
    check("every run of a name, none whose folder is gone", [r.split()[0] for r in rows] == ["faq", "run-2", "faq"], rows)
    check("asked for, names are columns", tinkc("run", "list", "-f", "tsv", "-c", "id,name", env=env).stdout ==
          "Run ID\tName\nrun-1\tfaq\nrun-2\t\nrun-3\tfaq\n")
    for args in (("run", "info"), ("checkpoint", "list", "--run-id")):
        check(f"{args} takes a name", tinkc(*args, "faq", "--json", env=env).stdout == tinkc(*args, "run-3", "--json").stdout)
    check("a record begins with the name", "\nName  " in tinkc("run", "info", "run-1", "-f", "table", env=env).stdout)


def settings():
    """Keys of the files that stand in for options, unknown ones, and who may set what."""
    folder = pathlib.Path(home, "settings")
    folder.mkdir()
    file = folder / "c.toml"
    file.write_text('[profile.other]\nmodle = "x"\n[defaults]\ncolor = "always"\n[run.list]\nlimit = 1\n'
                    'columns = "id,owner"\n[train.sft]\nlora_rnak = 3\n')
    r = tinkc("run", "list", "--config-file", file)
    check("options from a file", r.stdout == "Run ID\tOwner\nrun-1\tan [owner]\n", r)
    check("unknown keys", "c.toml:2: unknown key 'modle'; did you mean model" in r.stderr and
          "unknown key 'train.sft.lora_rnak'" in r.stderr and r.stderr.count("unknown") == 2, r.stderr)
    check("the command line wins", tinkc("run", "list", "--config-file", file, "--limit", "2", "-f", "id").stdout.count("\n") == 2)
    check("colour", "\033[1m" in tinkc("run", "list", "--config-file", file, "-f", "table").stdout)
    file.write_text("[run.list]\nlimit = -1\n")
    exits(2, "run", "list", "--config-file", file, says="not negative")
    exits(2, "run", "list", "--config-file", folder, says="cannot be read")
    (folder / ".tinkc.toml").write_text('[train.sft]\nhook = "rm -rf /"\n')
    exits(2, "run", "list", cwd=folder, says=".tinkc.toml:2:")
    for line, says in (('if_exists = "delete"', "may not ask for a run to be deleted"), ('log_dir = "/tmp/x"', "inside the project"),
                       ('log_dir = "a/../../x"', "inside the project"), ('log_dir = "~/x"', "inside the project"),
                       ('behavior_if_log_dir_exists = "delete"', "may not ask"), ('log_path = "../x"', "inside the project")):
        (folder / ".tinkc.toml").write_text("[train.sft]\n" + line + "\n")
        exits(2, "run", "list", cwd=folder, says=says)
    for section, line in (("train.rl", 'reward_cmd = "x"'), ("train.rl", 'reward_url = "http://x"'), ("chat", 'save = "x"')):
        (folder / ".tinkc.toml").write_text(f"[{section}]\n{line}\n")
        exits(2, "run", "list", cwd=folder, says="a project file may not")
    (folder / ".tinkc.toml").write_text('[train.sft]\nlog_dir = "runs/a"\nif_exists = "resume"\n')
    check("a project's own folder", tinkc("run", "list", cwd=folder).returncode == 0)
    (folder / "open.key").write_text("tml-x\n")
    (folder / "open.key").chmod(0o644)
    exits(2, "run", "list", "--api-key-file", folder / "open.key", says="other users of this machine can read")
    (folder / "open.key").chmod(0o600)
    check("a key of one's own", tinkc("run", "list", "--api-key-file", folder / "open.key").returncode == 0)
    (folder / ".tinkc.toml").unlink()
    (folder / "sys" / "tinkc").mkdir(parents=True)
    (folder / "sys" / "tinkc" / "config.toml").write_text('[defaults]\nformat = "id"\n')
    check("system file", tinkc("run", "list", env={"XDG_CONFIG_DIRS": f"/nowhere:{folder}/sys"}).stdout == "run-1\nrun-2\nrun-3\n")
    env = {"XDG_CONFIG_HOME": str(folder / "xdg"), "TINKER_API_KEY": None}
    command = "printf '%s' \"tml-\\x\""
    check("a command is stored", tinkc("auth", "login", "--no-check", "--credential-cmd", command, env=env).returncode == 0)
    r = tinkc("config", "get", "credential_cmd", env=env)
    check("as it is", r.stdout == command + "\n", r)
    tinkc("config", "set", "model", "m", "--profile", "work", env=env)
    tinkc("config", "use-profile", "work", env=env)
    r = tinkc("config", "profiles", "--json", env=env)
    check("profiles", {p["profile"]: p["current"] for p in json.loads(r.stdout)["profiles"]} == {"work": True, "default": False}, r)
    check("profiles complete", "work\t" in tinkc("__complete", "--", "config", "use-profile", "w", env=env).stdout)
    check("models complete", "Qwen/Qwen3-8B\t" in tinkc("__complete", "--", "chat", "-m", "Qwen/Qwen3-8", env=env).stdout)
    r = tinkc("config", "list", env=env)
    check("no origin unless asked", r.stdout.splitlines()[0] == "Key\tValue", r)
    check("origin", "config.toml:" in tinkc("config", "list", "--show-origin", env=env).stdout)


def lost_server(train, env):
    """The service goes away in the middle: attempts are reported, then it is a network failure that can be resumed."""
    whole = {k: v for k, v in dict(base_env, **env).items() if v}
    server_process = subprocess.Popen([build / "tinkc", "serve", "--port", "0", "--store", f"{home}/lost-store"], env=whole, cwd=home,
                                      text=True, stderr=subprocess.PIPE)
    address = ""
    while "TINKER_API_KEY" not in (line := server_process.stderr.readline()) and line:
        address = line.split("=")[1].strip() if "TINKER_BASE_URL=" in line else address
    remote = [w for w in train if w != "--local"]
    p = subprocess.Popen([build / "tinkc", *remote, "-m", "nano", "--epochs", "500", "--save-every", "1", "--log-dir", "lost", "--retry-for",
                          "2s"], env=dict(whole, TINKER_BASE_URL=address, TINKER_API_KEY="tml-local"), cwd=home, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while '"event":"checkpoint"' not in (line := p.stdout.readline()) and line:
        pass
    server_process.kill()
    server_process.communicate()
    out, err = p.communicate(timeout=300)
    events = [json.loads(l) for l in out.splitlines()]
    retries = [e for e in events if e["event"] == "retry"]
    check("attempts are events", retries and {"time", "step", "message", "attempt", "wait_s"} <= set(retries[0]), (out[-600:], err))
    check("then it is the network", p.returncode == 8 and "tinkc train resume lost" in err, (p.returncode, err))


def run_files(train, env, data):
    """The log directory in the cookbook's layout, and what the plan refuses."""
    repository = pathlib.Path(home, "repository")
    repository.mkdir()
    git = lambda *words: subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=repository,
                                        env=base_env, capture_output=True, text=True)
    has_git = shutil.which("git") and git("init", "-q").returncode == 0
    (repository / "code.txt").write_text("before\n")
    if has_git:
        git("add", "."), git("commit", "-qm", "x")
        (repository / "code.txt").write_text("after\n")
    r = tinkc(*train, "--log-dir", "run", "--test-size", "8", "--eval-every", "2", "--rolling-save-every", "2", "--max-steps", "5",
              env=env, cwd=repository, timeout=600)
    run = repository / "run"
    lines = lambda name: [json.loads(l) for l in (run / name).read_text().splitlines()]
    log = (run / "logs.log").read_text().splitlines()
    check("logs.log begins with the command line", "train sft" in log[0] and str(data) in log[0] and
          all(re.match(r"^[a-z_]+:\d+ \[(INFO|WARNING|ERROR)\] ", l) for l in log), log)
    check("and continues with what was said", any("test loss" in l for l in log) and "to talk    tinkc chat -m " in log[-1] and "tinker://" not in log[-1], log)
    if has_git:
        commit = git("rev-parse", "HEAD").stdout.strip()
        diff = (run / "code.diff").read_text()
        check("code.diff", diff.startswith(f"### repo: {repository.resolve()} @ {commit}\n") and "-before\n+after" in diff, diff)
    spans = lines("timing_spans.jsonl")
    check("timing spans", [s["step"] for s in spans] == list(range(5)) and [x["name"] for x in spans[0]["spans"]] ==
          ["evals", "get_batch", "step"] and set(spans[0]["spans"][0]) == {"name", "duration", "wall_start", "wall_end"} and
          abs(spans[0]["spans"][0]["wall_end"] - time.time()) < 300, spans)
    check("times in the metrics", {"time/get_batch", "time/step", "time/evals"} <= set(lines("metrics.jsonl")[0]), r.stdout)
    r = tinkc(*train, "--log-dir", "run", "--max-steps", "1", "--if-exists", "delete", env=env, cwd=repository, timeout=600)
    check("delete starts over", len(lines("timing_spans.jsonl")) == 1 and len(lines("metrics.jsonl")) == 1, r)
    for schedule, shares in (("constant", [0, .5, 1, 1, 1, 1]), ("linear", [0, .5, 1, .75, .5, .25]), ("cosine", [0, .5, 1, .853553391, .5, .146446609])):
        r = tinkc(*train, "--log-dir", "warm", "--if-exists", "delete", "--max-steps", "6", "--warmup-steps", "2", "--lr", "0.001", "--lr-schedule",
                  schedule, env=env, timeout=600)
        rates = [e["learning_rate"] for e in map(json.loads, r.stdout.splitlines()) if e["event"] == "step"]
        check(f"warm-up from 0, then {schedule}", [round(x / .001, 9) for x in rates] == shares, (rates, r))
    r = tinkc(*train, "--log-dir", "warmer", "--max-steps", "2", "--warmup-steps", "2", env=env, timeout=600)
    check("a warm-up as long as the run is refused", r.returncode == 2 and "must be below the number of steps, 2" in r.stderr, r)
    gone = {"TINKER_BASE_URL": "http://127.0.0.1:9", "TINKER_API_KEY": "tml-x"}
    remote = [w for w in train if w != "--local"] + ["-m", "nano", "--retry-for", "0"]
    kept = (repository / "run" / "metrics.jsonl").read_text()
    r = tinkc(*remote, "--log-dir", "run", "--if-exists", "delete", env=dict(env, **gone), cwd=repository)
    check("the old run stays until there is a new one", r.returncode == 8 and (repository / "run" / "metrics.jsonl").read_text() == kept, r)
    r = tinkc(*remote, "--log-dir", "never", env=dict(env, **gone), cwd=repository)
    check("and no empty folder is left", r.returncode == 8 and not (repository / "never").exists(), r)
    r = tinkc(*train, "--log-dir", "off", "--test-size", "8", "--eval-every", "0", "--max-steps", "1", env=env, timeout=600)
    check("evaluation off is off", r.returncode == 0 and "test/nll" not in r.stdout, r)
    plan = ("train", "sft", data, "--local", "--dry-run", "--log-dir", "plan")
    exits(2, *plan, "--ttl", "soon", env=env, says="--ttl")
    exits(2, *plan, "--ttl", "0", env=env, says="--ttl")
    exits(2, *plan, "--metadata", "novalue", env=env, says="K=V")
    turns = pathlib.Path(home, "turns.jsonl")
    turns.write_text(json.dumps({"messages": [{"role": r, "content": "x"} for r in ("user", "assistant") * 2]}) + "\n")
    r = tinkc("train", "sft", turns, "--local", "--dry-run", "--renderer", "qwen3", "--lr", "1", "--batch-size", "1", env=env)
    check("splitting is suggested", "--split-turns makes" in r.stderr, r)
    r = tinkc("train", "sft", turns, "--local", "--dry-run", "--renderer", "qwen3", "--lr", "1", "--split-turns", "--batch-size", "1", env=env)
    check("once", "makes an example" not in r.stderr and "2 examples" in r.stderr, r)
    check("the plan", "2 batches an epoch, 1 epoch" in r.stderr and "rank 32, 1,880,064 parameters" in r.stderr, r.stderr)
    exits(2, *plan, "-m", "tinker://a/weights/b", env=env, says="--from")
    exits(2, *plan, "--epochs", "9223372036854775807", env=env, says="--epochs")
    exits(3, "chat", "--local", "--load", "no-such", env=env, says="error: no-such")
    (repository / "bad.json").write_text("{}")
    exits(6, "chat", "--local", "--load", repository / "bad.json", env=env, says="not a list of messages")
    exits(2, "logs", "show", run, "--metric", "nope", says="known fields: step, epoch")
    r = tinkc("data", "split", data, "--test", "1", "-o", f"{home}/a\x1b[31mb")
    check("names are shown safely", r.returncode == 0 and "\x1b" not in r.stderr and "\\x1b[31m" in r.stderr, r)
    for bad in (("--top-p", "2"), ("--top-k", "-2"), ("--top-k", "4294967297"), ("-n", "4294967297"), ("--stop-token", "4294967297"),
                ("--stop", "a", "--stop-token", "1"), ("-p", "a", "--messages", "b")):
        exits(2, "sample", "-m", "nano", *bad, "x", env={"TINKER_BASE_URL": "http://127.0.0.1:9"}, says="error:")
    r = tinkc("sample", "--local", "--batch", "-", stdin='{"tokens": [4294967297]}\n{"tokens": ["a"]}\n', env=env)
    check("token ids are checked", r.stdout.count("not a list of token ids") == 2, r)


def local_work():
    """Batches, streams and templates on the engine inside the program."""
    if not pathlib.Path("models/nano/config.json").exists():
        return print("skipped: models/nano is not here")
    env = {"TINKER_API_KEY": None, "TINKER_BASE_URL": None, "TINKC_NANO": str(pathlib.Path("models/nano").resolve())}
    lines = [{"id": "a", "prompt": "What is 1 + 1?"}, {"messages": [{"role": "system", "content": "s"},
             {"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 3}, {"id": "c"}, {"id": "d", "prompt": "Spell cat.",
             "stop": ["a"]}]
    text = "".join(json.dumps(l) + "\n" for l in lines)
    how = ("sample", "--local", "--temperature", "0", "--max-tokens", "12", "--batch", "-")
    for order in ((), ("--unordered",)):
        r = tinkc(*how, *order, stdin=text, env=env)
        got = {json.dumps(v["id"]): v for v in map(json.loads, r.stdout.splitlines())}
        check(f"batch {order}", r.returncode == 10 and set(got) == {'"a"', "1", '"c"', '"d"'} and "error" in got['"c"'] and
              len(got["1"]["sequences"][0]["tokens"]) <= 3 and "a" not in got['"d"']["sequences"][0]["text"], r)
    out = pathlib.Path(home, "batch.jsonl")
    out.write_text(json.dumps({"id": "a", "sequences": []}) + "\n" + '{"id": "d", "seq')
    r = tinkc(*how, "-o", out, "--resume", stdin=text, env=env)
    ids = [json.loads(l)["id"] for l in out.read_text().splitlines() if l.endswith("}")]
    check("resume", r.returncode == 10 and ids == ["a", 1, "c", "d"], (r, ids))
    exits(2, *how, "--resume", stdin=text, env=env, says="--output")
    r = tinkc(*how, "--as-conversation", "--drop-system", stdin=text, env=env)
    roles = [[m["role"] for m in json.loads(l)["messages"]] for l in r.stdout.splitlines() if "messages" in json.loads(l)]
    check("as conversations", roles.count(["user", "assistant"]) == 3, r)
    ask = {"role": "user", "content": "What is 3 + 4?"}
    own, other = ({"messages": [{"role": "system", "content": c}, ask]} for c in ("Be brief.", "Be kind."))
    text = "".join(json.dumps(l) + "\n" for l in (own, other, {"prompt": ask["content"]}, {"messages": [ask]}, own, other))
    plain, brief = ([json.loads(l)["sequences"] for l in tinkc(*how, *s, stdin=text, env=env).stdout.splitlines()] for s in ((), ("-s", "Be brief.")))
    check("no system message unless asked", plain[2] == plain[3] != plain[0] and plain[:2] == plain[4:], plain)
    check("a batch's system message", brief == [plain[0], plain[1], plain[0], plain[0], plain[0], plain[1]], (plain, brief))
    r = tinkc(*how, "--as-conversation", "-s", "Be brief.", stdin=json.dumps({"prompt": "x"}) + "\n", env=env)
    check("and in conversations", json.loads(r.stdout)["messages"][:2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], r)
    r = tinkc(*how, "--as-conversation", "--drop-system", "-s", "Be brief.", stdin=json.dumps({"prompt": "x"}) + "\n", env=env)
    check("unless dropped", [m["role"] for m in json.loads(r.stdout)["messages"]] == ["user", "assistant"], r)
    one = [json.loads(tinkc("sample", "--local", "--temperature", "0", "--max-tokens", "12", "--json", "--messages", "-", *s, stdin=json.dumps(m), env=env).stdout)
           for s, m in (((), own), (("-s", "Be brief."), {"messages": [ask]}), (("-s", "Be brief."), other))]
    check("the same with --messages", one[0] == one[1] != one[2], one)
    exits(6, *how, stdin="{broken\n", env=env, says="-:1:")
    in_file = pathlib.Path(home, "in.jsonl")
    in_file.write_text('\ufeff{"prompt": "x"}\n{broken\n\n[1]\n', encoding="utf-8")
    gone = {"TINKER_BASE_URL": "http://127.0.0.1:9", "TINKER_API_KEY": "tml-x"}
    r = exits(6, "sample", "--batch", in_file, "-m", "m", env=gone, says=f"{in_file}:2:")
    check("every broken line before anything is sent", f"{in_file}:4: not an object" in r.stderr and "2 lines cannot be used" in r.stderr, r)
    r = exits(6, "sample", "--batch", in_file, "-m", "m", "--json", env=gone)
    check("as JSON", [p["line"] for p in json.loads(r.stderr)["error"]["problems"]] == [2, 4], r)
    bad_fields = [{"max_tokens": 0}, {"max_tokens": 1 << 40}, {"temperature": "hot"}, {"temperature": -1}, {"top_p": 2}, {"top_k": 1.5}, {"seed": "x"},
                  {"stop": [1]}, {"num_samples": 0}]
    r = tinkc(*how, stdin="".join(json.dumps(dict(f, prompt="x")) + "\n" for f in bad_fields), env=env)
    got = [json.loads(l) for l in r.stdout.splitlines()]
    check("fields that make no sense", r.returncode == 9 and all(list(f)[0] in v["error"] for f, v in zip(bad_fields, got)) and len(got) == len(bad_fields), r)
    for args, says in ((("--raw", "-s", "a", "x"), "has no effect"), (("--raw", "--messages", "-"), "has no effect"),
                       (("--resume", "x"), "--resume needs --batch"), (("-j", "3", "x"), "--jobs needs --batch"), (("--batch", "-", "x"), "more than one prompt"),
                       (("--batch", "-", "--drop-system"), "--as-conversation"), (("--batch", "-", "--stream"), "cannot be combined"),
                       (("--batch", "-", "-j", "0"), "from 1 to 2000")):
        exits(2, "sample", *args, "-m", "m", env=gone, says=says)
    ids = pathlib.Path(home, "ids.json")
    ids.write_text("[1, 2]")
    exits(2, "sample", "--local", "--prompt-file", ids, "-s", "a", env=env, says="holds token ids")
    check("raw is the model's choice", tinkc("sample", "--local", "--raw", "--max-tokens", "1", "x", env=env).returncode == 0)
    in_file.write_text('{"prompt": "x"}\n' * 3)
    full = subprocess.run([build / "tinkc", *how[:-1], in_file, "-o", "/dev/full"], env={k: v for k, v in dict(base_env, **env).items() if v}, cwd=home,
                          capture_output=True, text=True)
    check("a batch and a full disk", full.returncode == 1 and "/dev/full: No space left" in full.stderr, full)
    scores = [json.loads(tinkc("logprobs", "--local", "--json", *a, stdin=i, env=env).stdout) for a, i in
              ((("--text", "What is 1 + 1?"), ""), (("--tokens", "-"), json.dumps(json.loads(tinkc("tokenizer", "encode", "--json", "What is 1 + 1?", env=env).stdout)["tokens"])))]
    check("bits per byte do not depend on how the text was given", scores[0]["bits_per_byte"] == scores[1]["bits_per_byte"] > 0 and
          scores[0]["tokens"] == scores[1]["tokens"], scores)
    exits(2, "logprobs", "--local", "--sum", "--bpb", "--text", "x", env=env, says="either")
    r = tinkc("sample", "--local", "--stream", "--temperature", "0", "--max-tokens", "2", "What is 7 + 5?", env=env)
    check("stream", r.returncode == 0 and r.stdout.startswith("12") and "--max-tokens" in r.stderr, r)
    exits(2, "sample", "--local", "--max-tokens", "0", "x", env=env, says="--max-tokens")
    r = tinkc("sample", "--local", "--max-tokens", "2", "--json=base_model,prompt_tokens", "hi", env=env)
    check("fields of a sample", r.returncode == 0 and list(json.loads(r.stdout)) == ["base_model", "prompt_tokens"], r)
    exits(2, "sample", "--local", "--max-tokens", "2", "--json=nosuch", "hi", env=env, says="unknown field 'nosuch'")
    r = tinkc("tokenizer", "chat-template", "-", "--ids", "--text", stdin='[{"role":"user","content":"x"}]', env=env)
    check("one form", r.returncode == 2, r)
    r = tinkc("tokenizer", "info", env=env)
    check("tokenizer info", r.returncode == 0 and "End\t" in r.stdout, r)
    folder = pathlib.Path(home, "log")
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "a.b": s * 1.5, "a": 1}) + "\n" for s in (3, 9, 0, 1)))
    r = tinkc("logs", "plot", folder, "--metric", "a.b")
    check("plot of a run that went back", r.returncode == 0 and "13.5" in r.stdout, r)
    r = tinkc("logs", "plot", folder)
    check("a run without a usual metric names what it has", r.returncode == 3 and "it has step, a.b, a" in r.stderr, r)
    rl = pathlib.Path(home, "rl-log")
    rl.mkdir()
    (rl / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "optim/lr": 1e-5, "env/all/reward/total": s * 0.5}) + "\n" for s in (0, 1, 2)))
    check("the reward is what is plotted of an RL run", json.loads(tinkc("logs", "plot", rl, "--json").stdout)["metric"] == "env/all/reward/total")
    os.utime(rl / "metrics.jsonl", (1, 1))  # a run that has just written is followed for two minutes more
    check("and what is followed", "step 2  optim/lr 1e-05  env/all/reward/total 1\n" in tinkc("logs", "tail", rl).stdout)
    exits(3, "store", "check", home, env=env, says="is not a store")
    check("a check makes no files", not pathlib.Path(home, "meta.db").exists())
    two = pathlib.Path(home, "two")
    two.mkdir()
    (two / "metrics.jsonl").write_text('{"step":0,"k":0}\n{"step":10,"k":10}\n')
    rows = tinkc("logs", "plot", two, "--metric", "k").stdout.splitlines()[1:-1]
    check("two points make a line", len(rows) > 2 and all(set(r.split("│")[1]) - {" ", "\u2800"} for r in rows), rows)
    r = tinkc("logs", "show", folder, "--metric", "a.b")
    check("metrics with dots", "9\t13.5\n" in r.stdout, r)
    data = pathlib.Path(home, "lesson.jsonl")
    data.write_text('{"messages":[{"role":"user","content":"What is 1 + 1?"},{"role":"assistant","content":"2, matey"}]}\n' * 64)
    train = ("train", "sft", str(data), "--local", "--batch-size", "8", "--lora-rank", "8", "--save-every", "0", "--json")
    r = tinkc(*train, "--max-steps", "2", "--log-dir", "hooked", "--hook", "head -n 1 > hook.out", env=env, timeout=600)
    check("a hook that ends", r.returncode == 0 and '"event":"end"' in r.stdout and
          pathlib.Path(home, "hook.out").read_text().startswith('{"event":"start"'), r)
    run_files(train, env, data)
    lost_server(train, env)
    whole = {k: v for k, v in dict(base_env, **env).items() if v}
    p = subprocess.Popen([build / "tinkc", *train, "--epochs", "500", "--log-dir", "twice"], env=whole, cwd=home, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while '"event":"step"' not in (line := p.stdout.readline()):
        check("training starts", line != "") if not line else None
        if not line:
            break
    before = sorted(os.listdir(pathlib.Path(home, "twice")))
    for how in ("resume", "delete"):
        r = exits(5, *train[:-1], "--log-dir", "twice", "--if-exists", how, env=dict(env, XDG_DATA_HOME=f"{home}/another-store"), says="another process is training into")
    check("one run at a time in a folder", sorted(os.listdir(pathlib.Path(home, "twice"))) == before, r)
    p.send_signal(signal.SIGINT)
    time.sleep(0.01)  # two signals at once would be one
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=300)
    check("the second SIGINT leaves", p.returncode == 130 and "train resume" in err, (p.returncode, err))
    r = tinkc("whoami", "--local", env=env)
    check("whoami here", r.returncode == 0 and "tml:organization_user:default" in r.stdout, r)
    keys = pathlib.Path(home, "reloaded-keys")
    keys.touch(mode=0o600)
    keys.write_text("tml-one\ntml-two\n")
    p = subprocess.Popen([build / "tinkc", "serve", "--port", "0", "--store", f"{home}/keyed", "--auth-token-file", keys], env=whole,
                         cwd=home, text=True, stderr=subprocess.PIPE)
    while "TINKER_BASE_URL" not in (line := p.stderr.readline()):
        pass
    keyed = {"TINKER_BASE_URL": line.split("=")[1].strip()}
    check("a key counts", tinkc("run", "list", env={**keyed, "TINKER_API_KEY": "tml-one"}).returncode == 0)
    keys.write_text("tml-two\ntml-three tokens=1000000\n")
    p.send_signal(signal.SIGHUP)
    while (line := p.stderr.readline()) and "SIGHUP" not in line:
        pass
    check("SIGHUP reads the keys again", "2 keys" in line, line)
    codes = [tinkc("run", "list", env={**keyed, "TINKER_API_KEY": f"tml-{k}"}).returncode for k in ("one", "two", "three")]
    check("and only those count", codes == [4, 0, 0], codes)
    keys.write_text("")
    p.send_signal(signal.SIGHUP)
    while (line := p.stderr.readline()) and "stay as they were" not in line:
        pass
    check("an empty file changes nothing", tinkc("run", "list", env={**keyed, "TINKER_API_KEY": "tml-two"}).returncode == 0)
    p.terminate()
    check("it ends in good order", p.wait() == 0)
    p.communicate()
    limits = ("--max-context", "64", "--max-batch-tokens", "16", "--max-adapters", "1")
    p = subprocess.Popen([build / "tinkc", "serve", "--port", "0", *limits], env=whole, cwd=home, text=True, stderr=subprocess.PIPE)
    while "TINKER_API_KEY" not in p.stderr.readline():
        pass
    r = tinkc("sample", "--local", "--temperature", "0", "--max-tokens", "16", "What is 7 + 5?", env=env)
    check("a second process uses the server", r.returncode == 0 and "12" in r.stdout, r)
    r = tinkc("api", "--local", "GET", "/api/v1/get_server_capabilities", env=env)
    check("a server with limits says so", '"max_context_length":64' in r.stdout.replace(" ", ""), r)
    r = tinkc("sample", "--local", "--max-tokens", "512", "What is 7 + 5?", env=env)
    check("and keeps to them", r.returncode != 0 and "> 64" in r.stderr, r)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    r = tinkc("sample", "--local", "--temperature", "0", "What is 7 + 5?", env=env)
    check("what a killed server left", r.returncode == 0 and "served" not in r.stderr and "12" in r.stdout, r)
    for name, line, code, says in (("no-messages", '{"foo": "a", "bar": "b"}', 6, "data convert --help"),
                                   ("nothing", "", 6, "there are no conversations in"),
                                   ("untrained", '{"messages":[{"role":"user","content":"x"}]}', 6, "has a token that is trained on")):
        path = pathlib.Path(home, name + ".jsonl")
        path.write_text(line + "\n")
        exits(code, "train", "sft", path, "--local", "--dry-run", env=env, says=says)
    r = tinkc("train", "sft", data, "--local", "--dry-run", "--max-length", "20", env=env)
    check("what is cut is said", "64 longer than --max-length 20" in r.stderr, r)
    (folder / "config.json").write_text('{"tinkc": {"files": [1, null]}, "model_name": "nano"}')
    r = tinkc("train", "resume", folder, "--local", env=env)
    check("broken config.json", r.returncode in (2, 3) and "error:" in r.stderr, r)


for group in (grammar, refusals, formats, tables, errors, unknown_names, dead_server, profiles, doctor, external_weights, configuration, documentation, completions, data, lists,
              compatibility, json_everywhere, odd_bytes, signals, loading, chats, prompts, more_commands, settings, names, model_files, local_work):
    if not wanted or group.__name__ in wanted:
        group()
shutil.rmtree(home, ignore_errors=True)
print(f"cli: {passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
