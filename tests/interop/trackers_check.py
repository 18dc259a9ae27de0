"""A run with --tensorboard and --wandb, interrupted and continued: both packages must read every step once,
with the numbers of metrics.jsonl. `wandb sync` uploads to a server of our own."""
import gzip, http.server, json, os, pathlib, struct, subprocess, sys, threading

build, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
env = {k: v for k, v in os.environ.items() if not k.startswith(("TINK", "WANDB"))}
env.update(HOME=str(work), XDG_DATA_HOME=str(work / "data"), XDG_CONFIG_HOME=str(work / "config"), XDG_CACHE_HOME=str(work / "cache"))
log = work / "run"


def check(ok, what):
    if not ok:
        sys.exit("failed: " + what)
    print("ok:", what)


def train(*more):
    subprocess.run([build / "tinkc", "--no-config", "--local", "-q", "train", "sft", "lesson.jsonl", "--batch-size", "4", "--lora-rank", "4", "--seed", "1",
                    "--save-every", "4", "--log-dir", log, "--tensorboard", "--wandb-project", "pirates", *more], cwd=work, env=env, check=True)


def rows():
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def interrupted_run():
    (work / "lesson.jsonl").write_bytes(subprocess.run([build / "tools/pirate", "lesson", "128", "1"], capture_output=True, check=True).stdout)
    train("--max-steps", "6")
    # As if it had been killed after step 5: it continues from step 4 and trains two steps again.
    kept = [line for line in (log / "checkpoints.jsonl").read_text().splitlines() if json.loads(line)["name"] != "final"]
    (log / "checkpoints.jsonl").write_text("\n".join(kept) + "\n")
    train("--max-steps", "30", "--resume")
    check(len(list((log / "tensorboard").iterdir())) == 2, "each start has an event file")
    check(len(list((log / "wandb").glob("offline-run-*"))) == 1, "there is one offline run")
    check(sum(f.stat().st_size for f in log.glob("wandb/*/*.wandb")) > 32768, "which is longer than a block of its format")


def tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(log / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for name in ("train_mean_nll", "learning_rate", "num_tokens"):
        want = {r["step"]: struct.unpack("f", struct.pack("f", r[name]))[0] for r in rows() if name in r}
        got = [(e.step, e.value) for e in events.Scalars(name)]
        check(sorted(s for s, _ in got) == sorted(want), f"tensorboard has every step of {name} once: {[s for s, _ in got]}")
        check(all(value == want[step] for step, value in got), f"tensorboard has the values of {name}")


class Wandb(http.server.BaseHTTPRequestHandler):
    """As much of the service as `wandb sync` needs; keeps what is uploaded."""
    protocol_version = "HTTP/1.1"
    history, runs = [], []

    def log_message(self, *args):
        pass

    def answer(self, v):
        data = json.dumps(v).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.endswith("/file_stream"):
            files = json.loads(body).get("files") or {}
            self.history.extend(json.loads(line) for line in files.get("wandb-history.jsonl", {}).get("content", []))
            self.answer({"exitcode": None, "limits": {}})
            return
        if not self.path.endswith("/graphql"):
            self.answer({})
            return
        q = json.loads(body)
        text = q.get("query", "")
        if "upsertBucket" in text:
            self.runs.append(q["variables"])
            self.answer({"data": {"upsertBucket": {"inserted": True, "bucket": {
                "id": "b", "name": q["variables"].get("name"), "displayName": "n", "description": "", "config": "{}", "sweepName": None, "historyLineCount": 0,
                "project": {"id": "p", "name": "pirates", "entity": {"id": "e", "name": "me"}}}}}})
        elif "createRunFiles" in text:
            self.answer({"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}})
        elif "viewer" in text:
            self.answer({"data": {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}})
        else:
            self.answer({"data": {}})


def wandb():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wandb)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sync = subprocess.run([pathlib.Path(sys.executable).parent / "wandb", "sync", "--yes", *(log / "wandb").glob("offline-run-*")], cwd=work, timeout=300,
                          env={**env, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "a" * 40}, capture_output=True, text=True)
    check(sync.returncode == 0, f"wandb sync accepts it {sync.stdout[-500:] + sync.stderr[-500:] if sync.returncode else ''}")
    run = Wandb.runs[0]
    check(run["project"] == "pirates" and run["displayName"] == "run", "with its project and name")
    check(json.loads(run["config"])["lora_rank"]["value"] == 4, "with its settings")
    want = {r["step"]: r["train_mean_nll"] for r in rows() if "train_mean_nll" in r}
    got = {h["_step"]: h["train_mean_nll"] for h in Wandb.history if "train_mean_nll" in h}
    check(got == want and len(want) == 30, f"wandb uploads every step with its values: {sorted(got)}")


interrupted_run()
tensorboard()
wandb()
