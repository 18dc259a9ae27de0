"""Damaged and hostile requests against a server: it must answer each with a clear status and continue.

Usage: hostile.py URL [SECONDS]. First each attack that has a name, then, until the time is over, valid heads, paths, JSON and protobuf
bodies that are changed at random (with a fixed seed) and sent to every endpoint. No answer may be a 5xx, every refusal must be
{"detail", "code"}, no number that a damaged training request used up may hold up the next one, and nothing may be left at the end.
"""
import copy, http.client, json, random, socket, struct, sys, threading, time
from urllib.parse import urlparse

URL = urlparse(sys.argv[1])
connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=300)
rng = random.Random(7)


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def post(path, body, kind="application/json"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", f"/api/v1/{path}", body, {"X-API-Key": "tml-x", "Content-Type": kind})
    answer = connection.getresponse()
    data = answer.read()
    check(answer.status < 500, f"{path} {body[:300]}: {answer.status} {data[:300]}")
    if answer.status >= 400 and answer.status != 408:
        refusal = json.loads(data)
        check(isinstance(refusal["detail"], str) and refusal["code"], f"{path}: {data[:300]}")
    if answer.getheader("Content-Type", "").startswith("text/event-stream"):
        return answer.status, {}
    return answer.status, json.loads(data)


def wait(request_id):
    while True:
        status, answer = post("retrieve_future", {"request_id": request_id})
        if status != 408:
            return answer


def new_model(session, number):
    _, promise = post("create_model", {"session_id": session, "model_seq_id": number, "base_model": "nano",
                                       "lora_config": {"rank": 2, "seed": 1}})
    return wait(promise["request_id"])["model_id"]


def step(model, number):
    """Clipped, because a damaged weight may be any float and its gradient as large."""
    adam = dict(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=1.0)
    return {"model_id": model, "seq_id": number, "adam_params": adam}


# ---- protobuf, by hand ----

def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def part(field, data):
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def tensor(dtype, data, n):
    return part(1, data) + b"\x18" + varint(dtype) + part(4, varint(n))


def a_pass():
    chunk = part(1, part(1, part(1, struct.pack("<3i", 5, 6, 7))))
    inputs = {b"target_tokens": tensor(2, struct.pack("<3q", 6, 7, 8), 3),
              b"weights": tensor(1, struct.pack("<3f", 0, 1, 1), 3)}
    entries = b"".join(part(2, part(1, k) + part(2, v)) for k, v in inputs.items())
    return part(3, chunk + entries) + part(4, b"cross_entropy")


def damaged(data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, how = rng.randrange(len(data)), rng.random()
        if how < 0.6:
            data[at] = rng.randrange(256)
        elif how < 0.8 and len(data) > 10:
            del data[at:at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def protobuf(session, model_number, rounds):
    model, number = new_model(session, model_number), 0
    for _ in range(rounds):
        number += 1
        head = part(1, model.encode()) + b"\x10" + varint(number)
        status, promise = post("forward_backward", head + damaged(a_pass()), "application/x-protobuf")
        if status == 404:  # it is whole and names another model
            number -= 1
        elif status == 200:
            wait(promise["request_id"])
    _, promise = post("optim_step", step(model, number + 1))
    check("metrics" in wait(promise["request_id"]), "training continues after damaged passes")
    print(f"ok: {rounds} damaged passes")


# ---- JSON ----

VALUES = [None, True, 0, -1, 3, 2 ** 31, 2 ** 53, 2 ** 63 - 1, 2 ** 63, -2 ** 63, 2 ** 64, 10 ** 40, 1e308, -0.0,
          0.5, "", "a", "\0", "\u00e9" * 50, "../..", "x" * 5000, [], [[]], [1] * 3000, ["a"] * 300, {}, {"a": 1}]


def places(value, before=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield before + (key,)
        yield from places(inner, before + (key,))


def changed(body):
    body = copy.deepcopy(body)
    *way, key = rng.choice(list(places(body)))
    inside = body
    for name in way:
        inside = inside[name]
    if rng.random() < 0.2:
        del inside[key]
    else:
        inside[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(body).encode()
    return text[:rng.randrange(len(text))] if rng.random() < 0.1 else text


def json_bodies(session, model_number, rounds):
    model = new_model(session, model_number)
    _, made = post("create_sampling_session",
                   {"session_id": session, "sampling_session_seq_id": 100 + model_number, "base_model": "nano"})
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
    sample = {"sampling_session_id": made["sampling_session_id"], "num_samples": 2, "prompt": prompt,
              "sampling_params": {"max_tokens": 3, "seed": 1, "stop": ["x"], "temperature": 1.0}}
    inputs = {"target_tokens": {"data": [6, 7, 8], "dtype": "int64"},
              "weights": {"data": [0, 1, 1], "dtype": "float32", "shape": [3]}}
    data = {"loss_fn": "cross_entropy", "data": [{"model_input": prompt, "loss_fn_inputs": inputs}]}
    path = f"tinker://{model}/weights/a"
    bodies = {
        "create_session": {"tags": ["a"], "user_metadata": {"a": "b"}, "sdk_version": "x"},
        "create_model": {"session_id": session, "model_seq_id": model_number, "base_model": "nano",
                         "lora_config": {"rank": 2, "seed": 1}},
        "forward_backward": {"model_id": model, "seq_id": 1, "forward_backward_input": data},
        "optim_step": step(model, 1),
        "save_weights": {"model_id": model, "seq_id": 1, "path": "b", "ttl_seconds": 3600, "overwrite": True},
        "save_weights_for_sampler": {"model_id": model, "seq_id": 1, "path": "b"},
        "load_weights": {"model_id": model, "seq_id": 1, "path": path, "optimizer": True},
        "asample": sample, "stream_sample": {**sample, "num_samples": 1},
        "weights_info": {"tinker_path": path}, "get_info": {"model_id": model},
        "session_heartbeat": {"session_id": session}, "retrieve_future": {"request_id": "1-x:1"},
    }
    for _ in range(rounds):
        name = rng.choice(sorted(bodies))
        post(name, changed(bodies[name]))
    print(f"ok: {rounds} changed JSON bodies")


# ---- heads and paths ----

def raw(data, timeout=120):
    """What comes back for bytes on a connection of their own; "" if it is just closed."""
    with socket.create_connection((URL.hostname, URL.port), timeout=timeout) as s:
        said = b""
        try:
            s.sendall(data)
            while chunk := s.recv(65536):
                said += chunk
                head, _, body = said.partition(b"\r\n\r\n")
                length = [l for l in head.lower().split(b"\r\n") if l.startswith(b"content-length:")]
                if length and len(body) >= int(length[0][15:]):
                    break
        except ConnectionError:  # a refusal may close before everything was read
            pass
        return said


def status_of(said):
    return int(said.split()[1]) if said.startswith(b"HTTP/1.") else 0


def heads(rounds):
    """Heads that are changed at random, pages of other sites, queries without end: never a 5xx, never silence."""
    good = b"GET /api/v1/healthz?limit=1 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    for _ in range(rounds):
        said = raw(damaged(good[:-2]) + b"\r\n\r\n")
        check(status_of(said) < 500 or status_of(said) == 505, f"a damaged head: {said[:300]}")
    for n in (10, 1000, 5000, 15000, 30000):
        said = raw(b"GET /?" + b"a&" * n + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        check(400 <= status_of(said) < 500, f"a query of {n} names: {said[:300]}")
    body = b'{"tags":[],"sdk_version":"x"}'
    for header in (b"Content-Type: text/plain", b"Content-Type: application/json\r\nOrigin: https://evil.example",
                   b"Content-Type: application/json\r\nSec-Fetch-Site: cross-site"):
        said = raw(b"POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header +
                   b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        check(status_of(said) in (403, 415), f"{header}: {said[:300]}")
    check(status_of(raw(b"GET /api/v1/healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")) == 403, "a foreign Host")
    print(f"ok: {rounds} damaged heads, long queries, foreign pages")


def paths(rounds):
    parts = ["api", "v1", "training_runs", "checkpoints", "weights", "sessions", "samplers", "archives", "archive", "publish", "ttl",
             "..", "%2e%2e", "%00", "%zz", "%", "a" * 3000, "\u00e9", "external_weights_urls", "status", "", "~", "*"]
    for _ in range(rounds):
        path = "/" + "/".join(rng.choice(parts) for _ in range(rng.randrange(1, 8)))
        said = raw(f"{rng.choice(['GET', 'POST', 'DELETE', 'PUT', 'HEAD', 'OPTIONS'])} {path} HTTP/1.1\r\nHost: localhost\r\n"
                   "Connection: close\r\n\r\n".encode("utf-8"))
        check(status_of(said) < 500, f"{path[:200]}: {said[:300]}")
    print(f"ok: {rounds} paths")


# ---- attacks with a name ----

def two_readings():
    """Heads that a proxy in front may read in another way than the server does."""
    body = b'{"tags":[],"sdk_version":"x"}'
    start = b"POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    n = str(len(body)).encode()
    for lines in (b"Content-Length: " + n + b"\r\nContent-Length: 3\r\n", b"Content-Length: " + n + b"\r\nTransfer-Encoding: chunked\r\n",
                  b"Content-Length: +" + n + b"\r\n", b"Content-Length: 0x1d\r\n", b"Content-Length: -1\r\n",
                  b"Transfer-Encoding: chunked, identity\r\n", b"Host: evil.example\r\nContent-Length: " + n + b"\r\n",
                  b"X y: 1\r\nContent-Length: " + n + b"\r\n"):
        status = status_of(raw(start + lines + b"Connection: close\r\n\r\n" + body))
        check(status == 0 or 400 <= status < 500, f"{lines}: {status}")
    print("ok: heads with two readings")


def slow_peers(n):
    """Peers that begin a request and go no further keep nobody else out."""
    halves = (b"POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Le", b"GET /api/v1/hea", b"",
              b"POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    peers = [socket.create_connection((URL.hostname, URL.port), timeout=120) for _ in range(n)]
    for i, peer in enumerate(peers):
        peer.sendall(halves[i % len(halves)])
    for _ in range(10):
        check(status_of(raw(b"GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 200, "health beside slow peers")
    for peer in peers:
        peer.close()
    print(f"ok: {n} slow peers")


def bomb(mib):
    """A zstd frame of blocks that each repeat one byte 128 KiB long: 4 bytes on the wire for each."""
    block = (128 << 10) << 3 | 1 << 1
    return b"\x28\xb5\x2f\xfd\x00\x58" + (block.to_bytes(3, "little") + b" ") * (8 * mib) + (1).to_bytes(3, "little")


def packed_bodies():
    """Small bodies that unpack to gigabytes, four at once: too large, or too many at once, and the memory does not follow."""
    def resident():
        said = raw(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return json.loads(said.split(b"\r\n\r\n", 1)[1])["memory"]["resident"] >> 20
    before, answers = resident(), []

    def send(path, mib):
        body = bomb(mib)
        head = (f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Encoding: zstd\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
        answers.append((path, status_of(raw(head.encode() + body, timeout=600))))

    threads = [threading.Thread(target=send, args=(path, 2048)) for path in ("create_session", "asample", "forward_backward", "telemetry")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(len(answers) == 4 and all(status in (413, 503) for _, status in answers), f"packed bodies: {answers}")
    check(resident() < before + 1500, f"packed bodies: {before} MiB became {resident()} MiB")
    print("ok: packed bodies")


def hog(session):
    """A sample of many long sequences is under way: small ones and health are answered, and it can be cancelled."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
    _, made = post("create_sampling_session", {"session_id": session, "sampling_session_seq_id": 7, "base_model": "nano"})
    ask = {"sampling_session_id": made["sampling_session_id"], "prompt": prompt}
    _, large = post("asample", {**ask, "seq_id": 0, "num_samples": 256, "sampling_params": {"max_tokens": 400, "seed": 1}})
    for i in range(1, 4):
        _, small = post("asample", {**ask, "seq_id": i, "num_samples": 1, "sampling_params": {"max_tokens": 4, "seed": i}})
        check("sequences" in wait(small["request_id"]), "a small sample beside a large one")
    status, still = post("retrieve_future", {"request_id": large["request_id"]})
    check(status in (200, 408), f"the large sample: {status} {still}")
    post("cancel_future", {"request_id": large["request_id"]})
    wait(large["request_id"])
    print("ok: a large sample held up no small one")


def ruinous_step(session):
    """A step that would ruin the weights fails and changes nothing."""
    model = new_model(session, 5)
    data = {"loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}, "loss_fn_inputs": {
        "target_tokens": {"data": [6, 7, 8], "dtype": "int64"}, "weights": {"data": [1, 1, 1], "dtype": "float32"}}}]}

    def loss(number):
        _, promise = post("forward", {"model_id": model, "seq_id": number, "forward_input": data})
        return wait(promise["request_id"])["metrics"]["loss:sum"]

    before = loss(1)
    _, promise = post("forward_backward", {"model_id": model, "seq_id": 2, "forward_backward_input": data})
    wait(promise["request_id"])
    _, promise = post("optim_step", {**step(model, 3), "adam_params": {**step(model, 3)["adam_params"], "learning_rate": 1e38}})
    check("error" in wait(promise["request_id"]), "a learning rate of 1e38")
    check(loss(4) == before, "a step that failed was applied")
    print("ok: a ruinous step changed nothing")


def nothing_is_left():
    """The server holds no request of ours any more."""
    for _ in range(600):
        status = json.loads(raw(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").split(b"\r\n\r\n", 1)[1])
        if status["exchanges"] <= 1:  # this one
            print("ok: no exchange is left")
            return
        time.sleep(0.1)
    raise SystemExit(f"FAILED: {status['exchanges']} exchanges are left")


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 15
    end, rounds = time.monotonic() + seconds, 0
    _, made = post("create_session", {"tags": [], "sdk_version": "x"})
    session = made["session_id"]
    two_readings()
    slow_peers(100)
    packed_bodies()
    hog(session)
    ruinous_step(session)
    heads(50)
    paths(100)
    while rounds == 0 or time.monotonic() < end:
        protobuf(session, 10 + 2 * rounds, 60)
        json_bodies(session, 11 + 2 * rounds, 150)
        if rounds:
            heads(10)
            paths(40)
        rounds += 1
    connection.close()
    nothing_is_left()
    print(f"ok: {rounds} rounds in {seconds:.0f} s or more")


main()
