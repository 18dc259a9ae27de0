"""Drives a headless Chromium by the DevTools protocol, over its pipe. Standard library only."""
import base64, json, os, pathlib, queue, shutil, subprocess, tempfile, threading, time


def find():
    """The browser's program, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


class Closed(Exception):
    pass


class Browser:
    """One browser with one page. Notes what the page says on its console and whom it asks."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="tinkc-ui-")
        to_child, ours_out = os.pipe()
        ours_in, from_child = os.pipe()

        def connect():  # the browser reads 3 and writes 4
            a, b = os.dup(to_child), os.dup(from_child)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
             "--disable-extensions", "--force-color-profile=srgb", "--hide-scrollbars", "--mute-audio",
             "--user-data-dir=" + self.profile, "about:blank"],
            preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.out, self.into = ours_out, os.fdopen(ours_in, "rb")
        self.lock = threading.Lock()
        self.number = 0
        self.answers = {}
        self.problems, self.requests, self.downloads = [], [], []
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()
        target = self._call("Target.getTargets")["targetInfos"]
        page = next(t for t in target if t["type"] == "page")
        self.session = None
        self.session = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    # ---- the protocol ----

    def _read(self):
        rest = b""
        while chunk := self.into.read1(65536):
            *messages, rest = (rest + chunk).split(b"\0")
            for m in messages:
                self._take(json.loads(m))
        self.ended = True
        for waiting in list(self.answers.values()):
            waiting.put({"error": {"message": "the browser has ended"}})

    def _take(self, m):
        if "id" in m:
            if waiting := self.answers.get(m["id"]):
                waiting.put(m)
            return
        p = m.get("params", {})
        if m["method"] == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.problems.append("exception: " + d.get("exception", {}).get("description", d["text"]))
        elif m["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif m["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append("log: " + p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif m["method"] == "Network.requestWillBeSent":
            self.requests.append(p["request"])

    def _call(self, method, **params):
        waiting = queue.Queue()
        with self.lock:
            self.number += 1
            number = self.number
            self.answers[number] = waiting
            message = {"id": number, "method": method, "params": params}
            if getattr(self, "session", None):
                message["sessionId"] = self.session
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self.out, data):]
        try:
            answer = waiting.get(timeout=300)
        except queue.Empty:
            raise Closed(f"{method}: no answer") from None
        finally:
            del self.answers[number]
        if "error" in answer:
            raise Closed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def call(self, method, **params):
        return self._call(method, **params)

    # ---- what tests do ----

    def size(self, width, height, scale=1, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, script):
        """The value of an expression; promises are waited for."""
        r = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{script}: {r['exceptionDetails'].get('exception', {}).get('description')}")
        return r["result"].get("value")

    def wait(self, script, what, seconds=300, again=lambda: None):
        """Until the expression is true; `again` is done before each look."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                again()
                if self.eval(f"!!({script})"):
                    return
            except AssertionError:
                pass  # the page is still loading
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s for: {what}")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def hover(self, selector, fx=0.5, fy=0.5):
        box = self.eval(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                        " return [r.left, r.top, r.width, r.height]; })()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * fx, y=box[1] + box[3] * fy)

    def screenshot(self, path, whole=False):
        params = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            params = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
                      "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **params)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self._call("Browser.close")
            self.process.wait(20)
        except (Closed, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
