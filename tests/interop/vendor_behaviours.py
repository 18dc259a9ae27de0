"""The 27 behaviours that the vendor's public end-to-end suite expects of a service, tried on ours.

Usage: vendor_behaviours.py TINKC MODEL. Starts `TINKC serve` with keys, tokens and OpenAI's form behind
a TLS front, as a deployment would have it, and runs each behaviour with whichever SDK is installed.
The table in docs/server.md names the function of each behaviour.
"""
import asyncio, datetime, json, math, os, socket, ssl, subprocess, sys, tempfile, threading, urllib.request

import tinker
from tinker import types

TINKC, MODEL = map(os.path.abspath, sys.argv[1:3])
BASE, RANK, SEED, KEY = os.path.basename(MODEL), 8, 7, "tml-behaviours"
USER = "tml:organization_user:"
HOUR = 3600
behaviours = []


def behaviour(f):
    behaviours.append(f)
    return f


# ---- the deployment ----

class Front(threading.Thread):
    """Ends TLS in front of the server and passes bytes on; one thread each way of a connection."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
                        "-out", self.cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.cert, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self.listener.getsockname()[1]}"
        self.upstream = None

    def run(self):
        while True:
            raw, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(raw,), daemon=True).start()

    def serve(self, raw):
        with self.tls.wrap_socket(raw, server_side=True) as near, socket.create_connection(self.upstream) as far:
            far.sendall(near.recv(1 << 16).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            while data := far.recv(1 << 16):
                near.sendall(data)


class Deployment:
    def __init__(self, folder):
        self.front = Front(folder)
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as f:
            f.write(KEY + " email=ada@example.org\n")
        os.chmod(keys, 0o600)
        self.server = subprocess.Popen(
            [TINKC, "serve", MODEL, "--port", "0", "--store", os.path.join(folder, "store"), "--auth-token-file", keys,
             "--chat-apis", "--no-page", "--ready-fd", "1", "--set", "public_url=" + self.front.url],
            stdout=subprocess.PIPE, stderr=open(os.path.join(folder, "log"), "w"), text=True,
            env={**os.environ, "HOME": folder, "XDG_CONFIG_HOME": os.path.join(folder, "config")})
        self.url = self.server.stdout.readline().split()[-1]
        host, port = self.url.rsplit("/", 1)[1].split(":")
        self.front.upstream = (host, int(port))
        self.front.start()
        self.trust = ssl.create_default_context(cafile=self.front.cert)

    def request(self, method, path, body=None):
        """(status, headers, text) of a request without the SDK; path may be a whole address."""
        url = path if "://" in path else self.url + path
        request = urllib.request.Request(url, method=method, data=json.dumps(body).encode() if body else None,
                                         headers={"Authorization": "Bearer " + KEY, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.trust) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read().decode()


class World:
    """What the behaviours share: a service client, a REST client, one run that is trained little by little."""

    def __init__(self, deployment):
        self.http = deployment
        self.service = tinker.ServiceClient(base_url=deployment.url, api_key=KEY)
        self.rest = self.service.create_rest_client()
        self.shared = self.new_run()
        self.tokenizer = self.service.create_sampling_client(base_model=BASE).get_tokenizer()

    def new_run(self):
        """With a seed: a run that learns today learns every day."""
        return self.service.create_lora_training_client(base_model=BASE, rank=RANK, seed=SEED, user_metadata={"made_by": "behaviours"})

    def prompt(self, text):
        return types.ModelInput.from_ints(self.tokenizer.encode(text))

    def base_sample(self, text, num_samples=1, **params):
        sampler = self.service.create_sampling_client(base_model=BASE)
        return sampler.sample(self.prompt(text), num_samples, types.SamplingParams(**params)).result().sequences


def supervised(tokens, first=1):
    """Every token from number `first` on is predicted with weight 1."""
    weights = [0.0] * (first - 1) + [1.0] * (len(tokens) - first)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights})


def loss_of(client, datum):
    return client.forward([datum], "cross_entropy").result().metrics["loss:sum"]


def train(client, datum, steps, rate=3e-3):
    for _ in range(steps):
        client.forward_backward([datum], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=rate)).result()


# ---- who is asking, and what is offered ----

@behaviour
def async_calls(w):
    async def both():
        return await w.rest.whoami(), await w.service.get_server_capabilities_async()
    who, offered = asyncio.run(both())
    assert who.user_urn.startswith(USER) and offered.supported_models


@behaviour
def whoami(w):
    who = w.rest.whoami().result()
    assert who.user_urn.startswith(USER) and len(who.user_urn) > len(USER), who.user_urn
    assert who.email == "ada@example.org", who.email
    if "org_urn" in type(who).model_fields:
        assert who.org_urn.startswith("tml:organization:"), who.org_urn


@behaviour
def wrong_key(w):
    stranger = tinker.ServiceClient(base_url=w.http.url, api_key="tml-" + "7" * 40)
    try:
        stranger.create_rest_client().whoami().result()
    except tinker.AuthenticationError:
        return
    raise AssertionError("a key that nobody gave out was accepted")


@behaviour
def models_listed(w):
    names = [m.model_name for m in w.service.get_server_capabilities().supported_models]
    assert BASE in names and all(names)


# ---- checkpoints ----

@behaviour
def checkpoint_life(w):
    path = w.shared.save_weights_for_sampler("life", ttl_seconds=HOUR).result().path
    parsed = tinker.ParsedCheckpointTinkerPath.from_tinker_path(path)
    listed = lambda: [c.tinker_path for c in w.rest.list_checkpoints(parsed.training_run_id).result().checkpoints]
    assert path in listed() and path in [c.tinker_path for c in w.rest.list_user_checkpoints(limit=100).result().checkpoints]
    link = archive_link(w, parsed)
    assert link.startswith("https://"), link
    status, headers, body = w.http.request("HEAD", link)
    assert status == 200 and int(headers["Content-Length"]) > 0 and not body, (status, dict(headers))
    w.rest.set_checkpoint_ttl_from_tinker_path(path, 2 * HOUR).result()
    sampler = w.service.create_sampling_client(model_path=path)
    out = sampler.sample(w.prompt("Two plus two is"), 1, types.SamplingParams(max_tokens=4, temperature=0.0)).result()
    assert out.sequences[0].tokens
    w.rest.delete_checkpoint_from_tinker_path(path).result()
    assert path not in listed()


def archive_link(w, parsed):
    if hasattr(w.rest, "get_checkpoint_archive_url"):
        return w.rest.get_checkpoint_archive_url(parsed.training_run_id, parsed.checkpoint_id).result().url
    class Stay(urllib.request.HTTPRedirectHandler):  # newer releases of the SDK have no call for it
        def redirect_request(self, *_):
            return None
    request = urllib.request.Request(
        f"{w.http.url}/api/v1/training_runs/{parsed.training_run_id}/checkpoints/{parsed.checkpoint_id}/archive",
        headers={"X-API-Key": KEY})
    try:
        urllib.request.build_opener(Stay).open(request)
    except urllib.error.HTTPError as e:
        return e.headers["Location"]


# ---- the weights are the right ones ----

@behaviour
def sampler_serves_trained_weights(w):
    tokens = w.tokenizer.encode("Violet herons compile nothing on Sundays.")
    client, datum = w.new_run(), supervised(w.tokenizer.encode("Violet herons compile nothing on Sundays."))
    for _ in range(200):
        train(client, datum, 1)
        if loss_of(client, datum) / (len(tokens) - 1) < 0.02:
            break
    else:
        raise AssertionError("200 steps did not learn one sentence")
    path = client.save_weights_for_sampler("by-heart", ttl_seconds=HOUR).result().path
    sampler = w.service.create_sampling_client(model_path=path)
    out = sampler.sample(types.ModelInput.from_ints(tokens[:1]), 1,
                         types.SamplingParams(max_tokens=len(tokens), temperature=0.0)).result()
    w.rest.delete_checkpoint_from_tinker_path(path).result()
    assert w.tokenizer.decode(out.sequences[0].tokens).startswith(w.tokenizer.decode(tokens[1:]))


@behaviour
def trainer_and_sampler_agree(w):
    tokens = w.tokenizer.encode("Rain fell on the harbour all morning, and by noon the boats had not moved at all. " * 3)
    trained = w.new_run().forward([supervised(tokens)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    sampled = w.service.create_sampling_client(base_model=BASE).compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    assert sampled[0] is None and len(trained) == len(sampled) - 1
    assert max(abs(a - b) for a, b in zip(trained, sampled[1:])) < 1e-3  # one set of kernels: no drift


# ---- OpenAI's form ----

def chat(w, **more):
    return {"model": BASE, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 24, "temperature": 0, **more}


@behaviour
def openai_models(w):
    status, _, text = w.http.request("GET", "/oai/api/v1/models")
    listing = json.loads(text)
    assert status == 200 and listing["object"] == "list"
    assert all(m["id"] and m["object"] == "model" for m in listing["data"])


@behaviour
def openai_chat(w):
    status, _, text = w.http.request("POST", "/oai/api/v1/chat/completions", chat(w))
    answer = json.loads(text)
    assert status == 200 and answer["object"] == "chat.completion" and answer["model"] == BASE, text
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"].strip()
    assert choice["finish_reason"] in ("stop", "length")
    assert answer["usage"]["prompt_tokens"] > 0 and answer["usage"]["completion_tokens"] > 0


@behaviour
def openai_chat_stream(w):
    status, _, text = w.http.request("POST", "/oai/api/v1/chat/completions", chat(w, stream=True))
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]", text[-200:]
    chunks = [json.loads(e) for e in events[:-1]]
    assert chunks and all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]).strip()


@behaviour
def openai_completion(w):
    status, _, text = w.http.request("POST", "/oai/api/v1/completions",
                                     {"model": BASE, "prompt": "one two three", "max_tokens": 8, "temperature": 0})
    assert status == 200 and json.loads(text)["choices"][0]["text"].strip(), text


# ---- reading ----

def own_run(w):
    runs = w.rest.list_training_runs(limit=100).result().training_runs
    return next(r for r in runs if r.training_run_id == w.shared.model_id)


@behaviour
def run_is_listed(w):
    run = own_run(w)
    assert run.base_model == BASE and run.is_lora and run.model_owner == w.rest.whoami().result().user_urn


@behaviour
def run_by_id(w):
    run = w.rest.get_training_run(w.shared.model_id).result()
    assert run.model_dump() == own_run(w).model_dump() and not run.corrupted


@behaviour
def sessions_list_their_work(w):
    sessions = [w.rest.get_session(s).result() for s in w.rest.list_sessions(limit=20).result().sessions]
    assert any(w.shared.model_id in s.training_run_ids and s.sampler_ids for s in sessions)


@behaviour
def audit_log(w):
    w.shared.save_weights_for_sampler("audited", ttl_seconds=HOUR).result()
    today = datetime.datetime.now(datetime.timezone.utc).date()
    days = today, today - datetime.timedelta(days=1)  # a test may run at midnight
    entries = [e for day in days for e in w.rest.get_audit_log(day=day).result().entries]
    assert entries and all(e.event and e.timestamp for e in entries)
    assert any(e.event == "checkpoint_create" for e in entries), [e.event for e in entries]


# ---- training on scored samples, one behaviour for each loss ----

def scored_sample(w, loss):
    prompt = w.tokenizer.encode("The opposite of cold is")
    out = w.base_sample("The opposite of cold is", max_tokens=8, temperature=1.0, seed=3)[0]
    assert len(out.logprobs) == len(out.tokens) > 0
    reward = 1.0 if "hot" in w.tokenizer.decode(out.tokens) else -1.0
    tokens, pad = prompt + list(out.tokens), [0.0] * (len(prompt) - 1)
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                        loss_fn_inputs={"target_tokens": tokens[1:], "logprobs": pad + list(out.logprobs),
                                        "advantages": pad + [reward] * len(out.tokens)})
    result = w.shared.forward_backward([datum], loss).result()
    assert len(result.loss_fn_outputs) == 1 and math.isfinite(result.metrics["loss:sum"])
    w.shared.optim_step(types.AdamParams(learning_rate=1e-5)).result()


@behaviour
def rl_importance_sampling(w):
    scored_sample(w, "importance_sampling")


@behaviour
def rl_ppo(w):
    scored_sample(w, "ppo")


@behaviour
def rl_cispo(w):
    scored_sample(w, "cispo")


@behaviour
def rl_dro(w):
    scored_sample(w, "dro")


# ---- sampling ----

@behaviour
def samples_are_text(w):
    one = w.base_sample("Count: one, two,", max_tokens=12, temperature=0.0)[0]
    assert 0 < len(one.tokens) <= 12 and w.tokenizer.decode(one.tokens).strip()
    assert len(one.logprobs) == len(one.tokens) and all(math.isfinite(p) and p <= 0 for p in one.logprobs)
    several = w.base_sample("Count: one, two,", num_samples=3, max_tokens=12, temperature=0.0)
    assert len(several) == 3 and all(s.tokens for s in several)


@behaviour
def token_budget(w):
    one = w.base_sample("Count: one, two,", max_tokens=2, temperature=0.0)[0]
    assert len(one.tokens) <= 2 and one.stop_reason == ("length" if len(one.tokens) == 2 else "stop")


@behaviour
def base_model_of_sampler(w):
    assert w.service.create_sampling_client(base_model=BASE).get_base_model() == BASE


# ---- state ----

@behaviour
def saved_state_loads(w):
    client, datum = w.new_run(), supervised(w.tokenizer.encode("A saved state is the same state afterwards."))
    before = loss_of(client, datum)
    train(client, datum, 4)
    after = loss_of(client, datum)
    assert before - after > 0.05
    path = client.save_state("state", ttl_seconds=HOUR).result().path
    info = w.rest.get_weights_info_by_tinker_path(path).result()
    assert info.base_model == BASE and info.is_lora and info.lora_rank == RANK
    assert loss_of(w.service.create_training_client_from_state(path), datum) == after
    other = w.new_run()
    other.load_state(path).result()
    assert loss_of(other, datum) == after
    w.rest.delete_checkpoint_from_tinker_path(path).result()


@behaviour
def optimizer_state_continues(w):
    client, datum = w.new_run(), supervised(w.tokenizer.encode("Moments are part of what is saved."))
    train(client, datum, 4)
    path = client.save_state("moments", ttl_seconds=HOUR).result().path
    train(client, datum, 1)
    resumed = w.service.create_training_client_from_state_with_optimizer(path)
    train(resumed, datum, 1)
    assert loss_of(resumed, datum) == loss_of(client, datum)
    w.rest.delete_checkpoint_from_tinker_path(path).result()


# ---- training ----

@behaviour
def training_lowers_the_loss(w):
    question, answer = w.tokenizer.encode("Which bird is on the sign?"), w.tokenizer.encode(" A violet heron.")
    datum = supervised(question + answer, first=len(question))
    losses = [loss_of(w.shared, datum)]
    for _ in range(20):
        train(w.shared, datum, 1, rate=1e-2)
        losses.append(loss_of(w.shared, datum))
        if losses[-1] < 0.5:
            break
    assert losses[-1] < 0.5 < losses[0], losses
    sampler = w.shared.save_weights_and_get_sampling_client()
    out = sampler.sample(types.ModelInput.from_ints(question), 1, types.SamplingParams(max_tokens=8, temperature=0.0)).result()
    assert list(out.sequences[0].tokens[:len(answer)]) == answer[:8]


@behaviour
def model_is_described(w):
    info = w.shared.get_info()
    assert info.model_id == w.shared.model_id and info.is_lora and info.lora_rank == RANK and info.model_data.tokenizer_id


@behaviour
def forward_gives_elementwise_loss(w):
    tokens = w.tokenizer.encode("Each token has a loss of its own.")
    out = w.new_run().forward([supervised(tokens)], "cross_entropy").result()
    losses = out.loss_fn_outputs[0]["elementwise_loss"].data
    assert len(losses) == len(tokens) - 1 and all(x >= 0 for x in losses)
    assert abs(sum(losses) - out.metrics["loss:sum"]) < 1e-3


def main():
    os.chdir(os.path.dirname(MODEL))  # the SDK loads a tokenizer by the model's name: here it is a folder
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(folder)
        failed = []
        try:
            w = World(deployment)
            for f in behaviours:
                try:
                    f(w)
                    print("ok:", f.__name__, flush=True)
                except Exception as e:
                    failed.append(f.__name__)
                    print("FAILED:", f.__name__, type(e).__name__, e, flush=True)
        finally:
            deployment.server.terminate()
            deployment.server.wait()
            if failed:
                print(open(os.path.join(folder, "log")).read()[-3000:])
    assert len(behaviours) == 27, len(behaviours)
    print(f"{27 - len(failed)} of 27")
    sys.exit(bool(failed))


main()
