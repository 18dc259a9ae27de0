#!/usr/bin/env python3
"""A Hugging Face-compatible hub on loopback, for tests: standard library only.

Serves model repositories: revisions, paged file lists, resolve with ETags, ranges and redirects of
LFS files to a second origin, repository and branch creation, preupload, the LFS batch API (basic and
multipart) and commits. Faults can be asked for one by one.

    hub_server.py [--port 0] FOLDER...     FOLDER is ORG/NAME=PATH; prints its address and waits

As a module: Hub(), .add(name, {path: bytes}), .url, .fault(...), .log, .close().
"""
import base64, hashlib, http.server, json, os, re, socket, struct, sys, threading, urllib.parse

LFS_FROM = 4096  # bytes; *.safetensors, *.bin, *.gguf are LFS whatever their size


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(path, size):
    return size >= LFS_FROM or path.endswith((".safetensors", ".bin", ".gguf"))


class Repo:
    def __init__(self, private=False):
        self.private = private
        self.branches = {"main": None}
        self.commits = {}  # commit -> {path: bytes}
        self.commit({}, "main")

    def commit(self, files, branch):
        body = "".join(f"{p}\0{sha256(d)}\n" for p, d in sorted(files.items()))
        oid = hashlib.sha1((f"{len(self.commits)}\n" + body).encode()).hexdigest()
        self.commits[oid] = dict(files)
        self.branches[branch] = oid
        return oid

    def find(self, revision):
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Fault:
    """What one kind of request meets, `times` times: a status, or a cut after `cut` bytes."""

    def __init__(self, match, times, status=0, cut=None, headers=None, silent=False, data=None):
        self.match, self.times, self.status, self.cut = re.compile(match), times, status, cut
        self.headers, self.silent, self.data = headers or {}, silent, data


class Hub:
    page = 1000  # entries of a page of the list
    ranges = True  # whether downloads know Range
    redirects = True  # LFS files come from the second origin
    multipart_from = 1 << 60  # LFS objects of this size are uploaded in parts
    part_size = 64 * 1024
    gated = ()  # names that answer 403
    verifies_elsewhere = False  # whether the second origin is asked if an object is whole
    token = None  # required for everything if set
    user = "tester"
    pause = 0  # seconds between blocks of a download: for tests that stop in the middle
    huge = None  # (path, size): one more file in lists, which cannot be downloaded

    def __init__(self, port=0):
        self.repos, self.objects, self.faults, self.log = {}, {}, [], []
        self.uploads, self.lock = {}, threading.RLock()
        self.servers = [self._serve(port), self._serve(0)]
        self.url, self.store_url = ("http://127.0.0.1:%d" % s.server_address[1] for s in self.servers)

    def _serve(self, port):
        hub = self

        class Bound(Handler):
            pass

        Bound.hub = hub
        http.server.ThreadingHTTPServer.daemon_threads = True
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Bound)
        server.handle_error = lambda *_: None  # clients that go away in the middle are what is tested
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def add(self, name, files, private=False, branch="main"):
        with self.lock:
            repo = self.repos.setdefault(name, Repo(private))
            oid = repo.commit(files, branch)
            for path, data in files.items():
                if is_lfs(path, len(data)):
                    self.objects[sha256(data)] = data
            return oid

    def fault(self, match, times=1, **what):
        with self.lock:
            self.faults.append(Fault(match, times, **what))

    def count(self, match):
        with self.lock:
            return sum(1 for line in self.log if re.search(match, line["line"]))

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.handle_any()

    do_GET = do_POST = do_PUT = do_HEAD

    def handle_any(self):
        hub = self.hub
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        is_store = self.server is not hub.servers[0]
        line = f"{self.command} {self.path}"
        with hub.lock:
            hub.log.append({"line": line, "headers": dict(self.headers), "body": body,
                            "store": is_store})
            fault = next((f for f in hub.faults if f.times > 0 and f.match.search(line)), None)
            if fault:
                fault.times -= 1
        self.fault = fault
        if fault and fault.silent:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if fault and fault.status:
            return self.answer(fault.status, b"{}", **fault.headers)
        try:
            self.route_store(body) if is_store else self.route(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # ---- answers ----

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, text):
        self.answer(status, {"error": text}, X_Error_Code=code, X_Error_Message=text)

    def send_file(self, data, etag, **headers):
        hub, start = self.hub, 0
        wanted = re.match(r"bytes=(\d+)-$", self.headers.get("Range") or "")
        if self.fault and self.fault.data is not None:
            data = self.fault.data
        if wanted and hub.ranges:
            start = int(wanted.group(1))
            if start >= len(data):
                return self.answer(416, b"", Content_Range=f"bytes */{len(data)}")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        rest = data[start:]
        if self.fault and self.fault.cut is not None:
            self.wfile.write(rest[: self.fault.cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if not hub.pause:
            return self.wfile.write(rest)
        for at in range(0, len(rest), 65536):
            self.wfile.write(rest[at : at + 65536])
            self.wfile.flush()
            threading.Event().wait(hub.pause)

    # ---- the hub ----

    def route(self, body):
        hub, url = self.hub, urllib.parse.urlsplit(self.path)
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if hub.token and given != hub.token:
            return self.refuse(401, "RepoNotFound", "Invalid username or password.")
        path = url.path
        for method, pattern, handler in self.routes:
            found = re.fullmatch(pattern, path)
            if found and self.command in method:
                parts = {k: urllib.parse.unquote(v) for k, v in found.groupdict().items()}
                return getattr(self, handler)(body=body, query=urllib.parse.parse_qs(url.query), **parts)
        self.answer(404, {"error": "no such route"})

    NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
    routes = [
        ("GET", "/api/whoami-v2", "whoami"),
        ("GET HEAD", rf"/api/models/{NAME}", "info"),
        ("GET HEAD", rf"/api/models/{NAME}/revision/(?P<rev>[^/]+)", "info"),
        ("GET HEAD", rf"/api/models/{NAME}/tree/(?P<rev>[^/]+)", "tree"),
        ("GET HEAD", rf"/{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
        ("POST", "/api/repos/create", "create"),
        ("POST", rf"/api/models/{NAME}/branch/(?P<rev>[^/]+)", "branch"),
        ("POST", rf"/api/models/{NAME}/preupload/(?P<rev>[^/]+)", "preupload"),
        ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", "batch"),
        ("POST", rf"/{NAME}/lfs-verify", "verify"),
        ("POST", rf"/api/models/{NAME}/commit/(?P<rev>[^/]+)", "commit"),
        ("POST", "/api/validate-yaml", "yaml"),
    ]

    def find(self, name, rev="main"):
        """(repo, commit), or None after answering why not."""
        repo = self.hub.repos.get(name)
        if not repo:
            return self.refuse(404, "RepoNotFound", "Repository not found")
        if name in self.hub.gated:
            return self.refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        commit = repo.find(rev)
        if not commit:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        return repo, commit

    def whoami(self, body, query):
        self.answer(200, {"name": self.hub.user, "type": "user", "orgs": [], "auth": {"type": "access_token"}})

    def yaml(self, body, query):
        self.answer(200, {"errors": [], "warnings": []})

    def info(self, body, query, name, rev="main"):
        found = self.find(name, rev)
        if found:
            repo, commit = found
            self.answer(200, {"_id": "1", "id": name, "modelId": name, "sha": commit, "private": repo.private,
                              "tags": [], "downloads": 0, "likes": 0,
                              "siblings": [{"rfilename": p} for p in sorted(repo.commits[commit])]})

    def tree(self, body, query, name, rev):
        found = self.find(name, rev)
        if not found:
            return
        repo, commit = found
        entries, folders = [], set()
        for path, data in sorted(repo.commits[commit].items()):
            folder = path.rpartition("/")[0]
            if folder and folder not in folders:
                folders.add(folder)
                entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
            entry = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if is_lfs(path, len(data)):
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        if self.hub.huge:
            path, size = self.hub.huge
            entries.append({"type": "file", "oid": "1" * 40, "size": size, "path": path,
                            "lfs": {"oid": "2" * 64, "size": size, "pointerSize": 134}})
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + self.hub.page < len(entries):
            headers["Link"] = (f'<{self.hub.url}/api/models/{name}/tree/{rev}?recursive=true&'
                               f'cursor={start + self.hub.page}>; rel="next"')
        self.answer(200, entries[start : start + self.hub.page], **headers)

    def resolve(self, body, query, name, rev, path):
        found = self.find(name, rev)
        if not found:
            return
        repo, commit = found
        data = repo.commits[commit].get(path)
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        if not is_lfs(path, len(data)):
            return self.send_file(data, git_sha1(data), X_Repo_Commit=commit)
        oid = sha256(data)
        linked = {"X_Linked_Etag": f'"{oid}"', "X_Linked_Size": len(data), "X_Repo_Commit": commit}
        if self.hub.redirects:
            return self.answer(302, b"", Location=f"{self.hub.store_url}/objects/{oid}", **linked)
        self.send_file(data, oid, **linked)

    # ---- uploads ----

    def create(self, body, query):
        ask = json.loads(body)
        name = f"{ask.get('organization') or self.hub.user}/{ask['name']}"
        with self.hub.lock:
            if name in self.hub.repos:
                return self.answer(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
            private = ask.get("private", False) or ask.get("visibility") == "private"
            self.hub.repos[name] = Repo(private)
        self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": "1"})

    def branch(self, body, query, name, rev):
        repo = self.hub.repos.get(name)
        if not repo:
            return self.refuse(404, "RepoNotFound", "Repository not found")
        if rev in repo.branches:
            return self.answer(409, {"error": "Reference already exists"})
        repo.branches[rev] = repo.branches["main"]
        self.answer(200, {})

    def preupload(self, body, query, name, rev):
        found = self.find(name, rev)
        if not found:
            return
        files = []
        for f in json.loads(body)["files"]:
            base64.b64decode(f["sample"], validate=True)
            old = found[0].commits[found[1]].get(f["path"])
            files.append({"path": f["path"], "shouldIgnore": False,
                          "uploadMode": "lfs" if is_lfs(f["path"], f["size"]) else "regular",
                          "oid": None if old is None else sha256(old) if is_lfs(f["path"], f["size"])
                          else git_sha1(old)})
        self.answer(200, {"files": files})

    def batch(self, body, query, name):
        ask, out, hub = json.loads(body), [], self.hub
        transfer = "basic"
        for o in ask["objects"]:
            oid, size = o["oid"], o["size"]
            if oid in hub.objects:
                out.append({"oid": oid, "size": size})
                continue
            verifier = hub.store_url if hub.verifies_elsewhere else hub.url
            verify = {"href": f"{verifier}/{name}/lfs-verify", "header": {}}
            upload = {"href": f"{hub.store_url}/upload/{oid}", "header": {}}
            if size >= hub.multipart_from and "multipart" in ask["transfers"]:
                transfer = "multipart"
                with hub.lock:
                    key = f"{oid}-{len(hub.uploads)}"
                    hub.uploads[key] = {}
                parts = -(-size // hub.part_size)
                header = {f"{i + 1:05d}": f"{hub.store_url}/part/{key}/{i + 1}" for i in range(parts)}
                upload = {"href": f"{hub.url}/complete/{key}".replace(hub.url, hub.store_url),
                          "header": {"chunk_size": str(hub.part_size), **header}}
            out.append({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
        self.answer(200, {"transfer": transfer, "objects": out})

    def verify(self, body, query, name):
        ask = json.loads(body)
        data = self.hub.objects.get(ask["oid"])
        self.answer(200 if data is not None and len(data) == ask["size"] else 404, {})

    def commit(self, body, query, name, rev):
        found = self.find(name, rev)
        if not found:
            return
        repo, head = found
        files, summary = dict(repo.commits[head]), None
        for line in body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                summary = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif key == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    return self.answer(400, {"error": f"LFS object {value['oid']} is not there"})
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif key == "deletedFile":
                files.pop(value["path"], None)
        if not summary:
            return self.answer(400, {"error": "no summary"})
        pr = query.get("create_pr") == ["1"]
        oid = repo.commit(files, "refs/pr/1" if pr else rev)
        self.answer(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}",
                          "hookOutput": "", **({"pullRequestUrl": f"{self.hub.url}/{name}/discussions/1"} if pr else {})})

    # ---- the second origin: objects ----

    def route_store(self, body):
        hub, parts = self.hub, self.path.strip("/").split("/")
        if self.headers.get("Authorization"):  # signed addresses: a credential here is a leak
            return self.answer(400, b"a token came along")
        if parts[-1] == "lfs-verify":
            return self.answer(200, {})
        if parts[0] == "objects":
            return self.send_file(hub.objects[parts[1]], parts[1])
        if parts[0] == "upload":
            if sha256(body) != parts[1]:
                return self.answer(400, b"digest mismatch")
            hub.objects[parts[1]] = body
            return self.answer(200)
        if parts[0] == "part" and parts[1] in hub.uploads:
            hub.uploads[parts[1]][int(parts[2])] = body
            return self.answer(200, b"", ETag='"%s"' % hashlib.md5(body).hexdigest())
        if parts[0] == "complete" and parts[1] in hub.uploads:
            have, ask = hub.uploads[parts[1]], json.loads(body)
            want = [(p["partNumber"], p["etag"]) for p in ask["parts"]]
            if want != [(n, '"%s"' % hashlib.md5(have[n]).hexdigest()) for n in sorted(have)]:
                return self.answer(400, b"parts differ")
            data = b"".join(have[n] for n in sorted(have))
            if sha256(data) != ask["oid"]:
                return self.answer(400, b"digest mismatch")
            hub.objects[ask["oid"]] = data
            return self.answer(200, {})
        self.answer(404)


def main():
    args, port = sys.argv[1:], 0
    if args[:1] == ["--port"]:
        port, args = int(args[1]), args[2:]
    hub = Hub(port)
    for arg in args:
        name, _, folder = arg.partition("=")
        files = {}
        for top, _, names in os.walk(folder):
            for f in names:
                full = os.path.join(top, f)
                with open(full, "rb") as data:
                    files[os.path.relpath(full, folder)] = data.read()
        hub.add(name, files)
    print(hub.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
