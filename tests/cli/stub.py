"""A Tinker service that always says the same: what the CLI's tests run against.

Run ids and paths choose what happens: a run named after a failure ("missing", "forbidden", "busy", ...)
answers with it. Requests are kept in `seen` for the tests to look at.
"""
import base64, functools, http.server, io, json, os, ssl, tarfile, threading, time, urllib.parse

CHECKPOINTS = [
    {"checkpoint_id": f"{kind}/{name}", "checkpoint_type": what, "time": when,
     "tinker_path": f"tinker://run-1/{kind}/{name}", "size_bytes": size, "public": public, "expires_at": expires}
    for kind, name, what, when, size, public, expires in [
        ("sampler_weights", "final", "sampler", "2025-03-01T12:00:00Z", 1572864, True, None),
        ("weights", "000040", "training", "2025-02-01T12:00:00.500000Z", 3145728, False, "2025-06-01T00:00:00Z"),
        ("weights", "000020", "training", "2025-01-01T12:00:00Z", None, False, None)]]


def run(i):
    return {"training_run_id": f"run-{i}", "base_model": "Qwen/Qwen3-8B", "model_owner": "an [owner]",
            "is_lora": True, **({} if i == 9 else {"corrupted": i == 3}), "lora_rank": 32 if i != 2 else None,
            "last_request_time": "2025-01-02T03:04:05Z", "last_checkpoint": CHECKPOINTS[1] if i == 1 else None,
            "last_sampler_checkpoint": None, "user_metadata": {"purpose": "test", "日本": "語", "renderer_name": "qwen3"} if i == 1 else None,
            "new_field": 7}


FAILURES = {"missing": (404, "no such run"), "forbidden": (403, "not yours"), "rejected": (401, "bad key"),
            "invalid": (400, "what?"), "unprocessable": (422, "cannot"), "limited": (429, "slow down"),
            "unpaid": (402, "pay first"), "broken": (500, "oops"), "taken": (409, "already so")}


@functools.lru_cache
def archive(whole=True):
    size = int(os.environ.get("STUB_ARCHIVE_BYTES", "100000"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, body in [("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"x" * size),
                           ("checkpoint_complete", b"")][:3 if whole else 2]:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"y" * 5000}


def promised(h, path, query, body):
    """Results of what was promised: the id says which."""
    what = json.loads(body)["request_id"]
    if what in h.server.promised:
        if h.server.promised[what] is None:  # it is never kept
            threading.Event().wait(120)
        return h.answer(200, h.server.promised[what])
    h.answer(200, {"load": {"type": "load_weights", "path": None}, "create": {"model_id": "export-1"},
                   "external": {"path": f"tinker://export-{2 if h.server.loaded.endswith('kept') else 1}/external_weights/download"},
                   "saved": {"path": "tinker://export-1/weights/copy"}, "sampler": {"path": "tinker://export-1/sampler_weights/copy"}}[what])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def date_time_string(self, timestamp=None):
        """Addresses below /ahead and /behind have a clock that is a minute off."""
        off = {"ahead": 60, "behind": -60}.get(self.path.split("/")[1], 0)
        return super().date_time_string(time.time() + off if timestamp is None else timestamp)

    def answer(self, status, value=None, headers=(), body=None):
        data = body if body is not None else (b"" if value is None else json.dumps(value).encode())
        self.send_response(status)
        if value is not None:
            self.send_header("Content-Type", "application/json")
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        self.exchanges = path.startswith("/exchange/")  # addresses below it take a credential for a token
        path = path.removeprefix("/exchange") if self.exchanges else path
        path = path.removeprefix("/ahead").removeprefix("/behind").removeprefix("/bare").removeprefix("/owing")
        query = dict(urllib.parse.parse_qsl(url.query))
        self.server.seen.append((self.command, self.path, body))
        if self.server.log:
            self.note(body)
        if "tml-rejected" in (self.headers.get("X-API-Key") or "") and not path.endswith("/healthz"):
            return self.answer(401, {"detail": "who are you?"})
        if path.endswith("_capabilities") and self.path.startswith(("/bare/", "/owing/")):  # no models; a bill
            return self.answer(*((200, {"supported_models": []}) if "/bare/" in self.path else (402, {"detail": "pay first"}, [("x-should-retry", "false")])))
        for name, (status, text) in FAILURES.items():
            if f"/{name}" in path and not path.endswith("/archive.tar"):
                return self.answer(status, {"detail": text}, [("x-should-retry", "false")])
        for prefix, fn in sorted(ROUTES, key=lambda r: -len(r[0])):
            if path == prefix or (prefix.endswith("/") and path.startswith(prefix)):
                return fn(self, path, query, body)
        self.answer(404, {"detail": f"unknown path {path}"})

    def note(self, body):
        """A line for the request: what it asks for, the key where it is not the usual one, and its body."""
        key = self.headers.get("X-API-Key") or "none"
        text = body.decode(errors="backslashreplace") if body else ""
        with self.server.lock, open(self.server.log, "a") as f:
            f.write(" ".join(filter(None, (self.command, self.path, "" if key == "tml-test" else f"key={key}", text))) + "\n")

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


def page(key, items):
    def fn(h, path, query, body):
        if query.get("project_id") == "slow":
            h.server.slow.set()
            threading.Event().wait(120)
        if query.get("project_id") == "many":
            return page(key, [dict(items[0], training_run_id=f"many-{i}") for i in range(250)])(
                h, path, dict(query, project_id=""), body)
        limit, offset = int(query.get("limit", 20)), int(query.get("offset", 0))
        h.answer(200, {key: items[offset:offset + limit],
                       "cursor": {"offset": offset, "limit": limit, "total_count": len(items)}})
    return fn


def one_run(h, path, query, body):
    rest = path[len("/api/v1/training_runs/"):]
    name, _, tail = rest.partition("/")
    if not tail:
        return h.answer(200, run(int(name.split("-")[1])))
    if tail == "checkpoints":
        return h.answer(200, {"checkpoints": CHECKPOINTS, "cursor": None})
    if name in ("sealed", "export-1") and tail.endswith("/archive"):
        return h.answer(400, {"detail": "archives are no longer made"})
    if name.startswith("refused-") and tail.endswith("/archive"):
        return h.answer(int(name[8:]), {"detail": "not as an archive"}, [("x-should-retry", "false")])
    if h.command == "DELETE" and name == "export-1" and getattr(h.server, "stuck", False):
        return h.answer(409, {"detail": "it is stuck"})
    if tail.endswith("/external_weights_urls"):
        base = f"http://{h.headers['Host']}/file/"
        names = [n for n in FILES if n.endswith(".age") == (name == "encrypted")]
        return h.answer(200, {"urls": {n: base + n for n in names}, "expires": "2030-01-01T00:00:00Z"})
    if tail.endswith("/stalled/archive"):
        return h.answer(302, None, [("Location", f"http://{h.headers['Host']}/stalled.tar")])
    if name == "torn":
        return h.answer(302, None, [("Location", f"http://{h.headers['Host']}/torn.tar")])
    if name == "slow" and h.command == "DELETE":
        threading.Event().wait(120)
    if name == "export-2" and h.command == "DELETE":
        return h.answer(409, {"detail": "it is in use"})
    if tail.endswith("/archive"):
        return h.answer(302, None, [("Location", f"http://{h.headers['Host']}/archive.tar")])
    h.answer(204)


def stall(h):
    """Half of the archive, then nothing."""
    h.send_response(200)
    h.send_header("Content-Length", str(len(archive())))
    h.end_headers()
    h.wfile.write(archive()[:60000])
    h.wfile.flush()
    h.server.slow.set()
    threading.Event().wait(120)


EVENT = {"bucket_start": "2026-07-13T05:00:00Z", "bucket_end": "2026-07-13T06:00:00Z", "base_model": "Qwen/Qwen3-8B",
         "user_id": "u", "user_name": None, "session_id": "s-1", "project_id": None}
# Usage of 2020: more fields than a table has columns, sums of fractions, of whole numbers and of both, names with marks of CSV.
WIDE = {"data": [dict(EVENT, event_info=info) for info in (
    {"type": "storage", "gigabyte_hours": 0.5, "count": 2, "token_count": 7, 'a,"b"': 'c\t\r\n"d"'},
    {"type": "storage", "gigabyte_hours": 0.25, "count": 1, **{f"f{i:02}": i for i in range(22)}},
    {"type": "other", "gigabyte_hours": 2, "token_count": 5}, {"type": "other", "gigabyte_hours": 3}, {"type": "storage", "gigabyte_hours": 4},
    {"type": "third", "gigabyte_hours": None, "count": 3, "cached": False, "list": [1, {"a": 2}], "real": 1e16})],
    "sessions": {"s-1": {"user_metadata": None}, "s-2": {"user_metadata": {"k": "v", "日": '"'}}, "s-3": {}}}
WORDS = {"info_message": "the tide is out", "warning_message": "rain is near", "error_message": "the bridge is closed"}
TOKEN = ".".join(base64.urlsafe_b64encode(json.dumps(v).encode()).decode().rstrip("=") for v in (
    {"alg": "none"}, {"iss": "passport-1", "sub": "u:token", "email": "token@b", "exp": 4102444800})) + ".x"
ROUTES = [
    ("/api/v1/client/config", lambda h, *a: h.answer(200, {"pjwt_auth_enabled": True} if h.exchanges else {})),
    ("/api/v1/auth/token", lambda h, *a: h.answer(200, {"jwt": TOKEN})),
    ("/api/v1/client/dynamic_config", lambda h, *a: h.answer(200, {})),
    ("/api/v1/healthz", lambda h, *a: h.answer(200, {"status": "ok"})),
    ("/api/v1/get_server_capabilities", lambda h, *a: h.answer(200, {"supported_models": [
        {"model_name": "Qwen/Qwen3-8B", "max_context_length": 32768}, {"model_name": "unknown/model"}]})),
    ("/api/v1/training_runs", page("training_runs", [run(i) for i in range(1, 4)])),
    ("/api/v1/checkpoints", page("checkpoints", CHECKPOINTS)),
    ("/api/v1/training_runs/", one_run),
    ("/api/v1/headers", lambda h, *a: h.answer(200, {k.lower(): v for k, v in h.headers.items()})),
    ("/api/v1/weights_info", lambda h, p, q, b: h.answer(404, {"detail": "no such run"}) if b"//missing/" in b else
     h.answer(200, {"base_model": "Qwen/Qwen3-8B", "is_lora": True, **({"lora_rank": 4, "train_mlp": False} if b"/narrow\"" in b
                    else {"lora_rank": 32, "train_attn": False, "train_unembed": False} if b"/mlps\"" in b else {"lora_rank": 32})})),
    ("/api/v1/sessions", lambda h, *a: h.answer(200, {"sessions": ["s-1", "s-2"]})),
    ("/api/v1/sessions/", lambda h, *a: h.answer(200, {"training_run_ids": ["run-1"], "sampler_ids": ["smp-1"]})),
    ("/api/v1/samplers/", lambda h, path, *a: h.answer(200, {
        "sampler_id": "smp-1", "base_model": "Qwen/Qwen3-8B", "model_path": "tinker://run-1/sampler_weights/final" if path.endswith("2") else None})),
    ("/api/v1/audit", lambda h, *a: h.answer(200, {"entries": [
        {"timestamp": "2026-07-13T05:00:00Z", "event": "checkpoint.download", "model_id": "run-1",
         "tinker_path": "tinker://run-1/weights/000020", "purpose": None}]})),
    ("/api/v1/billing/usage/events", lambda h, p, q, b: h.answer(200, WIDE if q["starting_on"].startswith("2020") else {"data": [
        dict(EVENT, event_info={"type": "training", "token_count": 1000}),
        dict(EVENT, event_info={"type": "sampling_prefill", "cached": True, "token_count": 50})],
        "sessions": {"s-1": {"user_metadata": {"a": "b,c"}}}, "cost_data_through": "2026-07-13T04:00:00Z"})),
    ("/api/v1/billing/usage/checkpoints/current", lambda h, p, q, b: h.answer(200, {
        "effective_rate_usd_per_gigabyte_month": None if q.get("project_id") == "none" else 0.02,
        "data": [] if q.get("project_id") == "none" else [
            {"org_user_urn": "u:1", "project_id": "p-1", "user_email": "a@b", "user_name": "A, B", "checkpoint_count": 3, "size_bytes": 4718592,
             "size_gigabytes": 0.023771346, "estimated_monthly_cost_usd": 0.0001, "later": 1},
            {"org_user_urn": "u:2", "project_id": None, "user_email": None, "user_name": None, "checkpoint_count": 0, "size_bytes": 0,
             "size_gigabytes": 0, "estimated_monthly_cost_usd": None}]})),
    ("/api/v1/sessions/s-1/trace_export", lambda h, *a: h.answer(200, {
        "status": "ready", "url": f"http://{h.headers['Host']}/trace"})),
    ("/api/v1/sessions/s-2/trace_export", lambda h, *a: h.answer(200, {
        "status": "ready", "url": f"http://{h.headers['Host']}/missing/trace"})),
    ("/api/v1/create_session", lambda h, p, q, b: h.answer(200, dict(WORDS if b'"words"' in b else {}, session_id="s-9"))),
    ("/api/v1/session_heartbeat", lambda h, *a: h.answer(200, {})),
    ("/api/v1/create_model", lambda h, *a: h.answer(200, {"request_id": "create", "model_id": "export-1"})),
    ("/api/v1/load_weights", lambda h, *a: h.answer(200, {"request_id": "load"})),
    ("/api/v1/save_weights_external", lambda h, *a: h.answer(200, {"request_id": "external"})),
    ("/api/v1/save_weights", lambda h, *a: h.answer(200, {"request_id": "saved"})),
    ("/api/v1/save_weights_for_sampler", lambda h, *a: h.answer(200, {"request_id": "sampler"})),
    ("/api/v1/retrieve_future", promised),
    ("/file/", lambda h, path, *a: h.answer(200, None, body=FILES[path[len("/file/"):]])),
    ("/trace", lambda h, *a: h.answer(200, None, body=b"the trace")),
    ("/archive.tar", lambda h, *a: h.answer(200, None, body=archive())),
    ("/torn.tar", lambda h, *a: h.answer(200, None, body=archive(False))),
    ("/stalled.tar", lambda h, *a: stall(h)),
]


class Quiet(http.server.ThreadingHTTPServer):
    request_queue_size = 512  # commands that ask for much at once connect as often

    def handle_error(self, request, client_address):
        """Clients that leave, and handshakes that fail, are part of the tests."""


def start(certificate=None):
    server = Quiet(("127.0.0.1", 0), Handler)
    server.seen, server.promised, server.loaded = [], {}, ""
    server.log, server.lock = None, threading.Lock()  # a file that gets a line for each request
    server.slow = threading.Event()
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.names = []  # that clients ask for in their handshakes
        context.sni_callback = lambda connection, name, context: server.names.append(name)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}"


if __name__ == "__main__":
    server, url = start()
    print(url, flush=True)
    threading.Event().wait()
