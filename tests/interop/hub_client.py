"""huggingface_hub against the cache that `tinkc pull` fills, and its uploads against those of push-hf.

    hub_client.py BUILD
"""
import json, os, pathlib, random, re, subprocess, sys, tempfile

os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "support/client"))
import hub_server
import huggingface_hub

build = pathlib.Path(sys.argv[1]).resolve()
passed, failed = 0, []


def check(name, condition, detail=""):
    global passed
    if condition:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED {name}: {detail}")


def tinkc(hub, cache, *args, **more):
    cache.mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(cache), "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache),
           "TMPDIR": str(cache), "HF_TOKEN": "hf_any", **more}
    return subprocess.run([build / "tinkc", *args], env=env, capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL)


def files(seed):
    r = random.Random(seed)
    return {"config.json": b"{}", "tokenizer.json": r.randbytes(9000), "model.safetensors": r.randbytes(300_000),
            "sub/deep/note.txt": b"note", "a b.txt": b"", "README.md": b"# hi\n"}


def python_reads_ours(work):
    hub, cache = hub_server.Hub(), work / "ours"
    commit = hub.add("org/model", files(1))
    check("tinkc pull", tinkc(hub, cache, "pull", "org/model").returncode == 0)
    folder = huggingface_hub.snapshot_download("org/model", cache_dir=cache, local_files_only=True)
    check("snapshot_download finds it offline", folder.endswith(f"models--org--model/snapshots/{commit}"), folder)
    for path, data in files(1).items():
        found = huggingface_hub.hf_hub_download("org/model", path, cache_dir=cache, local_files_only=True)
        check(f"hf_hub_download {path}", pathlib.Path(found).read_bytes() == data)
    info = huggingface_hub.scan_cache_dir(cache)
    repo = next(iter(info.repos), None)
    check("scan_cache_dir", not info.warnings and len(info.repos) == 1 and repo.repo_id == "org/model"
          and {f.file_name for r in repo.revisions for f in r.files} == {p.rsplit("/", 1)[-1] for p in files(1)}
          and repo.size_on_disk == sum(map(len, files(1).values())), info)
    before = len(hub.log)
    api = huggingface_hub.HfApi(endpoint=hub.url)
    api.snapshot_download("org/model", cache_dir=cache)
    check("Python downloads nothing again", not any(l["line"].startswith("GET") and "resolve" in l["line"]
                                                    for l in hub.log[before:]), hub.log[before:])
    hub.close()


def ours_reads_python(work):
    hub, cache = hub_server.Hub(), work / "theirs"
    hub.add("org/model", files(2))
    huggingface_hub.HfApi(endpoint=hub.url).snapshot_download("org/model", cache_dir=cache)
    r = tinkc(hub, cache, "pull", "org/model", "--json")
    check("tinkc downloads nothing again", r.returncode == 0 and json.loads(r.stdout)["downloaded_bytes"] == 0, r.stderr)
    # A download that Python began and that was cut is continued.
    hub.add("org/two", {"model.safetensors": files(3)["model.safetensors"]})
    blob = cache / "models--org--two" / "blobs"
    blob.mkdir(parents=True)
    digest = hub_server.sha256(files(3)["model.safetensors"])
    (blob / f"{digest}.incomplete").write_bytes(files(3)["model.safetensors"][:100_000])
    r = tinkc(hub, cache, "pull", "org/two", "--json")
    check("a partial file is continued", json.loads(r.stdout)["downloaded_bytes"] == 200_000, r.stdout)
    hub.close()


def requests_of(hub):
    """What was sent, without what may differ: addresses of uploads, order of parallel pieces."""
    kinds = {}
    for e in hub.log:
        method, path = e["line"].split(" ", 1)
        kind = next((k for k in ("repos/create", "preupload", "objects/batch", "/upload/", "/part/", "/complete/",
                                 "lfs-verify", "/commit/") if k in path), None)
        if kind is None:
            continue
        body = e["body"]
        if kind == "/commit/":
            body = sorted(json.dumps(json.loads(l), sort_keys=True) for l in body.splitlines())
        elif kind in ("/upload/", "/part/"):
            body = (re.sub(r"-\d+/", "/", path), hub_server.sha256(body))
        else:
            body = json.loads(body)
        if kind == "preupload":
            body["files"].sort(key=lambda f: f["path"])
        if kind == "objects/batch":
            body["objects"].sort(key=lambda o: o["oid"])
        kinds.setdefault(kind, []).append((method, body))
    for kind in kinds:
        kinds[kind].sort(key=repr)
    return kinds


def uploads_agree(work):
    source = work / "adapter"
    for path, data in files(4).items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    (source / "adapter_config.json").write_text('{"base_model_name_or_path":"org/base"}')
    (source / "adapter_model.safetensors").write_bytes(files(5)["model.safetensors"])
    for multipart in (1 << 60, 100_000):
        ours, theirs = hub_server.Hub(), hub_server.Hub()
        ours.multipart_from = theirs.multipart_from = multipart
        r = tinkc(ours, work / "push", "checkpoint", "push-hf", str(source), "-r", "me/x", "--commit-message", "m")
        check("push-hf", r.returncode == 0, r.stderr)
        api = huggingface_hub.HfApi(endpoint=theirs.url, token="hf_any")
        api.create_repo("me/x", private=True, repo_type="model")
        api.upload_folder(repo_id="me/x", folder_path=source, commit_message="m")
        a, b = requests_of(ours), requests_of(theirs)
        what = "multipart" if multipart == 100_000 else "basic"
        for kind in sorted(set(a) | set(b)):
            mine, other = a.get(kind, []), b.get(kind, [])
            if kind == "repos/create":  # ours says "private" for older hubs, too
                check(f"{what} {kind}", all(mine[0][1].get(k) == v for k, v in other[0][1].items()), (mine, other))
            elif kind == "objects/batch":  # newer clients offer further transfers
                for _, body in mine + other:
                    body["transfers"] = sorted(set(body["transfers"]) & {"basic", "multipart"})
                check(f"{what} {kind}", mine == other, (mine, other))
            else:
                check(f"{what} {kind}", mine == other, f"\n{str(mine)[:900]}\n{str(other)[:900]}")
        check(f"{what}: the same repository", ours.repos["me/x"].commits[ours.repos["me/x"].branches["main"]]
              == theirs.repos["me/x"].commits[theirs.repos["me/x"].branches["main"]])
        check(f"{what}: both private", ours.repos["me/x"].private and theirs.repos["me/x"].private)
        ours.close()
        theirs.close()


with tempfile.TemporaryDirectory(prefix="tinkc-hub-interop-") as work:
    for part in (python_reads_ours, ours_reads_python, uploads_agree):
        part(pathlib.Path(work))
print(f"huggingface_hub {huggingface_hub.__version__}: {passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
