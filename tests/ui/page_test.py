"""The page in headless Chromium: it loads, curves move while a training runs, a chat streams, a key is
asked for, nothing is said on the console and nobody else is asked. Leaves screenshots in BUILD/ui."""
import json, os, pathlib, re, shutil, signal, subprocess, sys, tarfile, tempfile, time
import browser

build = pathlib.Path(sys.argv[1]).resolve()
shots = build / "ui"
work = pathlib.Path(tempfile.mkdtemp(prefix="tinkc-page-"))
env = {k: v for k, v in os.environ.items() if not k.startswith("TINK")}
env.update(XDG_DATA_HOME=str(work / "data"), XDG_CONFIG_HOME=str(work / "config"), XDG_CACHE_HOME=str(work / "cache"), HOME=str(work))
hostile = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def check(ok, what):
    if not ok:
        raise AssertionError(what)
    print("ok:", what, flush=True)


def tinkc(*args, **more):
    return subprocess.run([build / "tinkc", "--no-config", *args], cwd=work, env=env, check=True, capture_output=True, text=True, **more)


class Server:
    def __init__(self, *args):
        ours, theirs = os.pipe()
        self.process = subprocess.Popen([build / "tinkc", "--no-config", *args, "--port", "0", "--ready-fd", str(theirs)], cwd=work, env=env,
                                        pass_fds=[theirs], stderr=subprocess.PIPE, text=True)
        os.close(theirs)
        with os.fdopen(ours) as f:
            self.url = f.readline().strip()
        check(self.url.startswith("http://127.0.0.1:"), f"tinkc {args[0]} listens")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=120)
        check(self.process.returncode == 0, "the server ends in good order while pages are open")


def last_step(b, title):
    """The newest step of any curve in this chart, from the text for screen readers; -1 = none."""
    label = b.eval(f"[...document.querySelectorAll('.plot-over')].map((c) => c.getAttribute('aria-label')).find((t) => t.startsWith({json.dumps(title)})) || ''")
    steps = re.findall(r"at step ([0-9.]+)(k?)", label)
    return max((float(n) * (1000 if k else 1) for n, k in steps), default=-1)


def only_asks(b, *origins):
    others = {r["url"] for r in b.requests if not r["url"].startswith((*origins, "data:", "blob:", "about:", "chrome://"))}
    check(not others, f"no request to another host {others or ''}")


def is_quiet(b, but=()):
    said = [p for p in b.problems if not any(word in p for word in but)]
    check(not said, f"the console is empty {said or ''}")


def fits(b, what):
    wide = b.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(wide <= 0, f"{what} needs no sideways scrolling at {b.eval('innerWidth')} px")


def shoot(b, name):
    for width, height in ((1440, 900), (390, 844)):
        b.size(width, height)
        b.eval("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
        fits(b, name)
        b.screenshot(shots / f"{name}-{width}.png")
    b.size(1440, 900)


# ---- parts ----

def helpers(b):
    """The sums behind the charts, by their own values."""
    for script, want in (
            ("niceTicks(0, 10, 5)", [0, 2, 4, 6, 8, 10]), ("niceTicks(-1, 1, 4)", [-1, -0.5, 0, 0.5, 1]), ("niceTicks(3, 3, 5)", [3]),
            ("logTicks(0.09, 11, 5)", [0.1, 0.2, 0.5, 1, 2, 5, 10]), ("logTicks(1e-9, 1, 5)", [1e-9, 1e-7, 1e-5, 1e-3, 0.1]),
            ("[...smooth([1, 1, 1], 0.9)].map((v) => Math.round(v * 1e9) / 1e9)", [1, 1, 1]), ("[...smooth([2, 0], 0.5)].map((v) => v.toFixed(3))", ["2.000", "0.667"]),
            ("smooth([3, 4], 0)", [3, 4]), ("[nearest([1, 2, 4], 3.1), nearest([1, 2, 4], -5), nearest([1, 2, 4], 99)]", [2, 0, 2]),
            ("[0, 1e-5, 0.12345, 42, 12345, 1234567, NaN, null].map(fmt)", ["0", "1e-5", "0.1235", "42", "12345", "1.23M", "–", "–"]),
            ("[0, 1023, 1536, 2 ** 31].map(fmtBytes)", ["0 B", "1023 B", "1.5 KiB", "2.0 GiB"]),
            ("[[3, 10], [undefined, 1], ['b10', 'b9'], ['', 'a']].map(([x, y]) => Math.sign(byValue(x, y, false)))", [-1, 1, 1, 1]),
            ("[[3, 10], [undefined, 1]].map(([x, y]) => Math.sign(byValue(x, y, true)))", [1, 1]),
            ("differing([{ a: 1, b: 2 }, { a: 1, b: 3, c: 4 }].map((o) => ({ options: o })))", ["b", "c"]),
            ("spread([1, 2, 3, 4, 5], 3)", [1, 3, 5]), ("percent(Math.log(0.25))", "25.0 %"),
            ("(() => { const r = new Run({ id: 'x', name: 'x' }, 0); r.addRows([{ step: 0, a: 1 }, { step: 1, a: 2 }, { step: 2, a: 3 }, { step: 1, a: 9 }]);"
             " return [r.series.get('a').step, r.series.get('a').y]; })()", [[0, 1], [1, 9]])):
        got = b.eval(script)
        same = json.dumps(got) == json.dumps(want) or (isinstance(want, list) and len(got) == len(want) and all(
            isinstance(w, (int, float)) and abs(g - w) <= 1e-9 * max(1, abs(w)) for g, w in zip(got, want)))
        check(same, f"{script[:60]} is {want}" + ("" if same else f", not {got}"))


def make_data():
    lesson = subprocess.run([build / "tools" / "pirate", "lesson", "480", "1"], capture_output=True, check=True).stdout
    (work / "lesson.jsonl").write_bytes(lesson)


def train(name, *more):
    return subprocess.Popen([build / "tinkc", "--no-config", "--local", "-q", "train", "sft", "lesson.jsonl", "--batch-size", "4", "--lora-rank", "8",
                             "--test-size", "8", "--eval-every", "20", "--save-every", "40", "--seed", "1", "--log-dir", f"tinkc-runs/{name}", *more],
                            cwd=work, env=env, stderr=subprocess.PIPE, text=True)


def halt_later(job, step):
    """Stops the training where a step after this one is in its metrics, so that the page has time to show it while it trains."""
    metrics = work / "tinkc-runs/first/metrics.jsonl"
    written = lambda: [json.loads(line)["step"] for line in metrics.read_text().splitlines(True) if line.endswith("\n")] if metrics.exists() else []
    while job.poll() is None and max(written(), default=-1) <= step:
        time.sleep(0.01)
    job.send_signal(signal.SIGSTOP)


LAST_STEP = "Math.max(-1, ...[...document.querySelectorAll('.plot-over')].map((c) => c.getAttribute('aria-label') || '')" \
    ".filter((t) => t.startsWith('Loss')).flatMap((t) => [...t.matchAll(/at step ([0-9.]+)/g)].map((m) => Number(m[1]))))"


def curves_move(b):
    job, seen = train("first"), []
    for _ in range(3):
        halt_later(job, max(seen, default=0))
        b.wait("document.querySelectorAll('.run').length === 1", "the run appears in the list")
        b.wait(f"({LAST_STEP}) > {max(seen, default=-1)}", f"the curve grows while it trains: steps {seen}")
        seen.append(last_step(b, "Loss"))
        job.send_signal(signal.SIGCONT)
    said = job.communicate()[1]
    check(job.returncode == 0, f"the training ends well {said}")
    check(True, f"the curve grew while it trained: steps {seen}")
    rows = [json.loads(line) for line in (work / "tinkc-runs/first/metrics.jsonl").read_text().splitlines()]
    newest = max(r["step"] for r in rows)
    b.wait(f"document.querySelector('.plot-over').getAttribute('aria-label').includes('at step {newest}')", "the last step arrives")
    b.wait("document.querySelector('.run .state').textContent === 'completed'", "the run is completed")
    check(True, "the last step and the end arrive")


def several_runs(b):
    job = train("second", "--lr", "1e-3", "--max-steps", "60")
    samples = [{"step": s, "prompt": "What is the sea?", "completion": text, "reward": s / 100}
               for s, text in ((0, "water"), (20, {"toString": 1}), (40, hostile), (60, "Arr, salt water, matey!"))]
    check(job.wait() == 0, "a second training ends well " + job.stderr.read())
    (work / "tinkc-runs/second/samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples) + "{torn")
    b.wait("document.querySelectorAll('.run').length === 2", "both runs are listed")
    b.wait("document.querySelectorAll('.chart .legend')[0].children.length === 4", "train and test curves of both runs lie in one chart")
    b.wait("document.querySelectorAll('.card').length === 4", "samples stand side by side")
    check(b.eval("[...document.querySelectorAll('.card .pre')].some((p) => p.textContent.includes('onerror'))"), "a hostile sample is shown as text")
    check(b.eval("document.title") == "tinkc – runs", "and does nothing")
    check(b.eval("[...document.querySelectorAll('.card .pre')].some((p) => p.textContent.includes('toString'))"), "and so is an object")
    titles = b.eval("[...document.querySelectorAll('#view-runs .chart-title')].map((t) => t.textContent)")
    check(titles == ["Loss", "Learning rate", "Throughput, tokens/s"], f"the usual charts are there: {titles}")


def table(b):
    """The table of runs: sorted by a click, with the options in which they differ; their differences; the log's end."""
    head = "[...document.querySelectorAll('.runs-table th')].map((t) => t.textContent)"
    names = "[...document.querySelectorAll('.runs-table tbody td:first-child')].map((t) => t.textContent)"
    b.wait("document.querySelectorAll('.runs-table tbody tr').length === 2", "both runs are in the table")
    check({"Run", "State", "Step", "Loss", "max_steps"} <= set(b.eval(head)), f"with results and the options that differ: {b.eval(head)}")
    check("batch_size" not in b.eval(head), "and not with those that are the same")
    for click, want in (("Run", ["first", "second"]), ("Run", ["second", "first"])):
        b.eval(f"[...document.querySelectorAll('.sort')].find((s) => s.textContent === '{click}').click()")
        b.wait(f"JSON.stringify({names}) === {json.dumps(json.dumps(want, separators=(',', ':')))}", f"a click on a title sorts by it: {want}")
    options = "[...document.querySelectorAll('.options tbody th')].map((t) => t.textContent)"
    check("max_steps" in b.eval(options) and "batch_size" not in b.eval(options), "options that differ stand side by side")
    check("loss" in b.eval("document.querySelector('.run-value').textContent"), "the number of a run says what it is")
    b.eval("[...document.querySelectorAll('details.more')].at(-1).open = true")
    b.wait("document.querySelector('pre.log') && document.querySelector('pre.log').textContent.includes('to talk')", "the log's end can be read")
    b.eval("[...document.querySelectorAll('details.more')].at(-1).open = false")


def controls(b):
    b.wait("!document.querySelector('.tip').hidden && document.querySelectorAll('.tip-row').length >= 2", "hovering shows the values",
           again=lambda: b.hover(".plot-over", 0.5))
    b.eval("void (window.picture = document.querySelector('.plot-base').toDataURL())")
    b.eval("document.querySelector('.toggle').click()")
    b.wait("document.querySelector('.toggle').getAttribute('aria-pressed') === 'true'", "the scale is logarithmic")
    b.wait("document.querySelector('.plot-base').toDataURL() !== window.picture", "the picture changes with the scale")
    b.eval("document.querySelector('.toggle').click()")
    b.eval("document.querySelector('.plot-over').focus()")
    b.key("ArrowLeft", 37)
    b.key("ArrowLeft", 37)
    b.wait("/step \\d+/.test(document.getElementById('announce').textContent)", "arrow keys read values out")
    b.eval("document.querySelectorAll('.run input')[0].click()")
    b.wait("document.querySelectorAll('.chart .legend')[0].children.length === 2", "a run can be taken out")
    b.eval("document.querySelectorAll('.run input')[0].click()")
    b.eval("document.querySelector('.more summary').click()")
    b.wait("document.querySelectorAll('.more .chart').length > 5", "all metrics can be seen")
    b.eval("document.querySelector('.more summary').click()")
    dark = "getComputedStyle(document.body).backgroundColor"
    light = b.eval(dark)
    b.eval("document.getElementById('theme').click()")
    check(b.eval(dark) != light, "there is a dark theme")
    b.screenshot(shots / "runs-dark-1440.png")
    b.eval("document.getElementById('theme').click()")
    unnamed = b.eval("[...document.querySelectorAll('button, input, select, textarea, a')].filter((e) => e.checkVisibility() && "
                     "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim())).map((e) => e.outerHTML)")
    check(not unnamed, f"everything that can be operated has a name {unnamed or ''}")


def download(b):
    """A checkpoint by its button: a whole archive with the adapter in it."""
    b.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(work / "downloads"))
    b.wait("document.querySelector('td.actions button[title=Download]')", "checkpoints can be downloaded")
    b.eval("document.querySelector('td.actions button[title=Download]').click()")
    end = time.monotonic() + 300
    while not (found := list((work / "downloads").glob("*.tar"))) and time.monotonic() < end:
        time.sleep(0.05)
    check(found and "adapter_model.safetensors" in tarfile.open(found[0]).getnames(), f"a checkpoint is downloaded: {[f.name for f in found]}")


# What the server sends in pieces reaches the page in those pieces, however late the browser reads them.
ONE_BY_ONE = """void (() => {
  const real = window.fetch;
  window.fetch = async (...words) => {
    const answer = await real(...words);
    if (!String(words[0]).includes("/chat/completions")) return answer;
    const parts = (await answer.text()).split(/(?<=\\n\\n)/);
    const pull = async (to) => {
      await new Promise((go) => setTimeout(go));
      if (parts.length) to.enqueue(new TextEncoder().encode(parts.shift())); else to.close();
    };
    return new Response(new ReadableStream({ pull }), { status: answer.status, headers: answer.headers });
  };
})()"""


def chat(b):
    b.wait("document.querySelector('td.actions button[title=\"Sample from it\"]')", "checkpoints can be sampled from")
    b.eval("document.querySelector('td.actions button[title=\"Sample from it\"]').click()")
    b.wait("document.querySelector('.play select')?.value.startsWith('tinker://')", "the playground has the checkpoint")
    b.eval(ONE_BY_ONE)
    b.eval("window.grown = []; new MutationObserver(() => window.grown.push(document.querySelectorAll('.tok').length)).observe("
           "document.querySelector('.talk'), { childList: true, subtree: true })")
    b.eval("document.querySelector('[name=temperature]').value = 0; document.querySelector('.compose textarea').focus()")
    b.type("What is 3 plus 4?")
    b.key("Enter", 13)
    b.wait("document.querySelectorAll('.tok').length > 2 && !document.querySelector('.busy')", "an answer comes")
    check(len(set(b.eval("window.grown"))) > 2, "the answer comes in pieces")
    check(b.eval("[...document.querySelectorAll('.tok')].every((t) => t.style.getPropertyValue('--p') !== '')"), "every token has its probability")
    b.wait("document.querySelectorAll('.tok-tip .tip-row').length === 6", "a token shows what else was likely",
           again=lambda: b.hover(".tok:nth-child(2)"))
    shoot(b, "playground")


def engine(b):
    b.eval("location.hash = '#engine'")
    b.wait("document.querySelector('.tile-value')?.textContent !== '–'", "the engine's state is shown")
    check("in all" in b.eval("document.querySelector('.tile .muted').textContent"), "tokens are counted")
    b.wait("document.querySelectorAll('#view-engine td.path').length > 4", "runs and checkpoints of the store are listed")
    shoot(b, "engine")


def with_key():
    (work / "keys").touch(mode=0o600)
    (work / "keys").write_text("tml-right\n")
    server = Server("ui", "tinkc-runs", "--auth-token-file", "keys")
    b = browser.Browser(browser.find())
    b.size(1440, 900)
    b.open(server.url + "/")
    for key, then in (("tml-wrong", "document.getElementById('key-error').textContent.includes('not accepted')"), ("tml-right", "document.querySelector('.live.on')")):
        b.wait("document.getElementById('key-dialog').open", "a key is asked for")
        b.eval("document.getElementById('key-input').focus()")
        b.type(key)
        b.key("Enter", 13)
        b.wait(then, "what it says of " + key)
    b.wait("document.querySelectorAll('.run').length === 2", "runs are shown to who has the key")
    b.eval("location.hash = '#playground'")
    b.wait("document.querySelector('#view-playground .empty')?.checkVisibility()", "a page without a model says so")
    check(not any("tml-" in r["url"] for r in b.requests), "the key is in no address")
    check(any(r["headers"].get("X-API-Key") == "tml-right" for r in b.requests), "the key is a header")
    check(b.eval("Object.keys(localStorage).every((k) => !localStorage[k].includes('tml-'))"), "the key is not kept beyond the tab")
    is_quiet(b, but=("401",))
    only_asks(b, server.url)
    server.stop()
    b.close()


def report(b):
    tinkc("logs", "report", "tinkc-runs", "-o", "report.html")
    b.open("about:blank")
    b.wait("location.href === 'about:blank'", "the page is closed, with its attempts to reach the server")
    before = len(b.requests)
    b.open((work / "report.html").as_uri())
    b.wait("document.body.classList.contains('report') && document.querySelectorAll('.chart').length >= 3", "a report shows its charts")
    check(last_step(b, "Loss") >= 59, "with all their steps")
    check(b.eval("document.querySelectorAll('.card').length") == 4 and b.eval("document.title") == "tinkc report", "and its samples, as text")
    check({r["url"] for r in b.requests[before:]} == {(work / "report.html").as_uri()}, "a report is one file")
    shoot(b, "report")


def main():
    shutil.rmtree(shots, ignore_errors=True)
    shots.mkdir(parents=True)
    make_data()
    server = Server("serve")
    b = browser.Browser(browser.find())
    try:
        b.size(1440, 900)
        b.open(server.url + "/")
        b.wait("document.querySelector('.live.on')", "the feed is open")
        b.wait("document.querySelector('.empty-title')?.textContent === 'No runs yet'", "an empty page says so")
        helpers(b)
        curves_move(b)
        several_runs(b)
        table(b)
        shoot(b, "runs")
        controls(b)
        download(b)
        chat(b)
        engine(b)
        is_quiet(b)
        only_asks(b, server.url)
        server.stop()
        report(b)
        only_asks(b, server.url, "file://")
        with_key()
    except BaseException:
        try:
            b.screenshot(shots / "failed.png")
        except Exception:
            pass
        print("console:", b.problems, file=sys.stderr)
        raise
    finally:
        b.close()
        for p in (server.process,):
            if p.poll() is None:
                p.kill()
        shutil.rmtree(work, ignore_errors=True)
    print("page: everything passed; screenshots in", shots)


main()
