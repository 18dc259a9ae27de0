"""A server under steady load: its memory, descriptors, threads and store must end where they began.

Usage: soak.py URL PID [SECONDS [CLIENTS]]. Clients train, save, sample and fetch results in a loop, each in a session of its own. Once
it is warm (a tenth of the time) memory is read every few seconds, and the curve is printed. After the clients are gone the server writes
its last images (autosave_s, a minute) and then gives back what it holds for work (idle_release_s, half a minute); it has three minutes
for both. Fails if what stays resident, files not counted, is more than 20 % above the warm value, or if more descriptors or threads
stay open than before the first client came, with a margin of eight for what the server opens on first use.
"""
import http.client, json, os, sys, threading, time
from urllib.parse import urlparse

URL = urlparse(sys.argv[1])
PID = int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 600
CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else 32
MARGIN = 8
over = threading.Event()
counts = {"steps": 0, "samples": 0, "saves": 0, "failures": 0}
first_failure = []


class Client:
    def __init__(self):
        self.connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=300)

    def post(self, path, body):
        self.connection.request("POST", f"/api/v1/{path}", json.dumps(body), {"X-API-Key": "tml-x", "Content-Type": "application/json"})
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status == 429:
            time.sleep(0.2)
            return self.post(path, body)
        if answer.status not in (200, 408):
            raise RuntimeError(f"{path}: {answer.status} {data[:300]}")
        return answer.status, json.loads(data)

    def wait(self, promise):
        while True:
            status, answer = self.post("retrieve_future", {"request_id": promise["request_id"]})
            if status != 408:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer


def work(number):
    try:
        c = Client()
        _, made = c.post("create_session", {"tags": [], "sdk_version": "soak"})
        session, seq, round_number = made["session_id"], 0, 0
        _, promise = c.post("create_model", {"session_id": session, "model_seq_id": 0, "base_model": "nano",
                                             "lora_config": {"rank": 8, "seed": number}})
        model = c.wait(promise)["model_id"]
        tokens = [5 + (number + i) % 200 for i in range(64)]
        datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                 "loss_fn_inputs": {"target_tokens": {"data": tokens, "dtype": "int64", "shape": [64]},
                                    "weights": {"data": [1.0] * 64, "dtype": "float32", "shape": [64]}}}
        adam = dict(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0)
        while not over.is_set():
            _, one = c.post("forward_backward", {"model_id": model, "seq_id": seq + 1,
                                                 "forward_backward_input": {"loss_fn": "cross_entropy", "data": [datum]}})
            _, two = c.post("optim_step", {"model_id": model, "seq_id": seq + 2, "adam_params": adam})
            _, three = c.post("save_weights_for_sampler", {"model_id": model, "seq_id": seq + 3, "sampling_session_seq_id": round_number})
            c.wait(one), c.wait(two)
            sampler = c.wait(three)["sampling_session_id"]
            _, four = c.post("asample", {"sampling_session_id": sampler, "num_samples": 2, "seq_id": 1,
                                         "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens[:16]}]},
                                         "sampling_params": {"max_tokens": 16, "seed": round_number}})
            c.wait(four)
            seq += 3
            round_number += 1
            counts["steps"] += 1
            counts["samples"] += 2
            counts["saves"] += 1
    except Exception as e:
        counts["failures"] += 1
        first_failure.append(f"client {number}: {e}")


def memory():
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    c.request("GET", "/status", headers={"X-API-Key": "tml-x"})
    parts = json.loads(c.getresponse().read())["memory"]
    c.close()
    return (parts["resident"] - parts["resident_files"]) / 2 ** 20, parts


def open_things():
    """Descriptors and threads of the server's process."""
    return {what: len(os.listdir(f"/proc/{PID}/{folder}")) for what, folder in (("descriptors", "fd"), ("threads", "task"))}


def main():
    before = open_things()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    start, warm = time.monotonic(), None
    while (now := time.monotonic() - start) < SECONDS:
        mib, parts = memory()
        if warm is None and now > SECONDS / 10:
            warm = mib
        named = ", ".join(f"{k} {v / 2 ** 20:.0f}" for k, v in parts.items() if v > 1 << 20 and not k.startswith("resident"))
        things = open_things()
        print(f"{now:6.0f} s {mib:7.0f} MiB  {things['descriptors']:4d} descriptors {things['threads']:3d} threads  "
              f"steps {counts['steps']:6d}  {named}", flush=True)
        over.wait(max(1.0, SECONDS / 60))
    over.set()
    for t in threads:
        t.join()
    end, _ = memory()
    peak, idle_since = end, time.monotonic()
    while time.monotonic() - idle_since < 180 and end > warm / 2:
        time.sleep(1)
        end, parts = memory()
        peak = max(peak, end)
    print(f"idle: {peak:.0f} MiB fell to {end:.0f} MiB within {time.monotonic() - idle_since:.0f} s")
    print(f"{counts['steps']} steps, {counts['samples']} samples, {counts['saves']} saves, {counts['failures']} failures")
    after = open_things()
    print(f"warm {warm:.0f} MiB, afterwards {end:.0f} MiB; before {before}, afterwards {after}")
    if first_failure:
        raise SystemExit(f"FAILED: {first_failure[0]}")
    if end > 1.2 * warm:
        raise SystemExit(f"FAILED: {end / warm:.2f} of the warm value stays resident: {parts}")
    for what, n in after.items():
        if n > before[what] + MARGIN:
            raise SystemExit(f"FAILED: {n - before[what]} more {what} than before the first client")
    print("ok: the server ends where it began")


main()
