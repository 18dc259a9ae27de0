"""rules_decided.py BUILD: plants one fault for each rule below, in the place that docs/architecture.md names for it, and
runs the test that states the rule, which must fail; without faults all of them must pass."""
import concurrent.futures, json, os, pathlib, re, shlex, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent
build = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "tools"))
sys.dont_write_bytecode = True
# rule, function or table, file, what stands there, the fault, test program, its test
RULES = [
    ("a pause between attempts is shortened by at most a quarter", "attempt_delay", "src/client/call/call.c", "0.25 *", "0.5 *", "client.call.retry_gaps", "*"),
    ("each poll has a number of its own", "poll_once", "src/client/call/promise.c", "p->inner.iteration++;", "", "client.call.polling", "*"),
    ("a sample is tried max_attempts times", "attempt_failed", "src/client/sample/sample_op.c", "attempts >= o->max_attempts", "attempts > o->max_attempts", "client.sample.resampling", "*"),
    ("a part of a millisecond that a service asks for is waited for", "tkc_retry_after_ms", "src/codec/retry.c", "(int64_t)ceil(ms)", "(int64_t)ms", "codec.streams", "*"),
    ("each status from 500 on is a failure of the server", "tkc_code_of_status", "src/base/err.c", ">= 500", ">= 600", "base.memory", "*"),
    ("after a 429 requests count for more of the budget of bytes", "acquire", "src/client/sample/sample_op.c", "op->estimate * THROTTLED_FACTOR", "op->estimate", "client.call.concurrency", "*"),
    ("the kind of a tokenizer's pattern decides where text is cut", "tkc_encode_gap", "src/bpe/encoder.c", "= gap_qwen2,", "= gap_gpt2,", "tokenizer.encode", "*"),
    ("cross entropy takes soft targets", "rows", "engine/train/loss.c", ".soft = true", ".soft = false", "engine.loss", "*"),
    ("a setting may be as small as its row says", "known", "service/core/service.c", "INT(metadata_only_threshold, 1, 0,", "INT(metadata_only_threshold, 1, 100,", "service.service_rules", "device_failures"),
    ("a folder that cannot be synced is taken back", "tke_store_place", "service/store/store_files.c", "moved && !ok", "!moved && !ok", "service.store.store", "*"),
    ("a request has one Host header", "tke_guard_check", "service/http/http_guard.c", "h->n_host > 1", "h->n_host > 2", "service.http.server_parts", "*"),
    ("a path is that of its endpoint", "endpoints", "src/wire/endpoint.c", "\"optim_step\"", "\"optim_steps\"", "wire.endpoint", "*"),
]


def command_of(source):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if pathlib.Path(entry["file"]).resolve() == source:
            return shlex.split(entry["command"]), entry["directory"]
    raise SystemExit(f"{source} is not compiled")


def body_of(text, name):
    """Where the definition of a function or a table begins and ends."""
    found = re.search(rf"^(?!.*;$)[a-z][^\n;]*\b{name}(\(|\[)", text, re.M)
    if not found:
        raise SystemExit(f"no definition of {name}")
    return found.start(), text.index("\n}", found.start())


def run_test(program, test):
    return subprocess.run([program], cwd=root, env={**os.environ, "TINKC_ONLY_TEST": test}, capture_output=True, timeout=120).returncode


def fault(rule):
    said, name, file, before, after, program, test = rule
    source = root / file
    text = source.read_text()
    begin, end = body_of(text, name)
    at = text.find(before, begin, end)
    if at < 0:
        return f"{said}: no '{before}' in {name} ({file})"
    with tempfile.TemporaryDirectory(prefix="tinkc-rule-") as work:
        copy, planted, faulty = f"{work}/{source.name}", f"{work}/planted.o", f"{work}/test"
        pathlib.Path(copy).write_text(text[:at] + after + text[at + len(before):])
        command, folder = command_of(source)
        command[command.index("-o") + 1] = planted
        command[command.index("-c") + 1] = copy
        subprocess.run([*command, "-Wno-error", f"-I{source.parent}"], cwd=folder, check=True, capture_output=True)
        ninja = ["ninja", "-C", str(build), "-t", "commands", "-s", f"tests/test_{program}"]
        link = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        link = re.sub(r"-o \S+", f"-o {faulty} {planted}", link, count=1)
        subprocess.run(link, shell=True, cwd=build, check=True, capture_output=True)
        if run_test(str(build / f"tests/test_{program}"), test) != 0:
            return f"{said}: {program} fails without a fault"
        return "" if run_test(faulty, test) != 0 else f"{said}: {program} ({test}) does not notice a fault in {name} ({file})"


page = (root / "docs/architecture.md").read_text().split("## Where a rule lives", 1)[1].split("\n## ", 1)[0]
bad = [f"'Where a rule lives' does not name {r[2]}" for r in RULES if f"`{r[2]}`" not in page]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    bad += [said for said in pool.map(fault, RULES) if said]
print("\n".join(bad) or f"rules: faults in {len(RULES)} places that the page names are noticed")
sys.exit(bool(bad))
