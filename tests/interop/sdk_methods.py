"""The public methods of the SDK that python_sdk.py's stories leave out: the asynchronous twins of the
REST client, the admin client, tokenizers, handles. Each is held to what its plain form answers.
"""
import datetime, inspect, json, logging, urllib.request

import tinker
from tinker import types
from tinker.lib.public_interfaces.rest_client import RestClient


def refused(call, *words):
    try:
        call()
    except Exception as e:
        return any(w in str(e) for w in words) or str(e)
    return False


def last_hours():
    hour = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    return hour - datetime.timedelta(hours=1), hour + datetime.timedelta(hours=1)


def ready(client):
    """The client itself: since 0.38 a call that makes one returns a future of it."""
    return client.result() if hasattr(client, "result") else client


async def awaited(value):
    value = await value
    return await value if inspect.isawaitable(value) else value


async def on_their_loop(client, coroutine):
    """get_audit_log_async works on the SDK's own event loop only: it asserts so."""
    return await client.holder.run_coroutine_threadsafe(coroutine)


async def reading(check, rest, saved):
    """Each asynchronous reader gives what the plain one gives."""
    run, session = saved.split("/")[2], saved.split("/")[2].split(":")[0]
    sampler = rest.get_session(session).result().sampler_ids[0]
    twins = [(rest.get_training_run, rest.get_training_run_async, (run,)),
             (rest.get_training_run_by_tinker_path, rest.get_training_run_by_tinker_path_async, (saved,)),
             (rest.list_checkpoints, rest.list_checkpoints_async, (run,)),
             (rest.list_training_runs, rest.list_training_runs_async, (100,)),
             (rest.list_user_checkpoints, rest.list_user_checkpoints_async, (100,)),
             (rest.list_sessions, rest.list_sessions_async, (100,)),
             (rest.get_session, rest.get_session_async, (session,)),
             (rest.get_sampler, rest.get_sampler_async, (sampler,)),
             (rest.get_billing_usage, rest.get_billing_usage_async, last_hours())]
    if hasattr(rest, "search_sessions_async"):
        twins.append((rest.search_sessions, rest.search_sessions_async, (types.SessionSearchRequest(),)))
    if hasattr(rest, "get_current_checkpoint_storage_usage"):
        twins.append((rest.get_current_checkpoint_storage_usage, rest.get_current_checkpoint_storage_usage_async, ()))
    for plain, twin, args in twins:
        check(await twin(*args) == plain(*args).result(), f"{twin.__name__} is {plain.__name__}")
    log = await on_their_loop(rest, rest.get_audit_log_async())
    check(log == rest.get_audit_log().result(), "get_audit_log_async is get_audit_log")
    try:
        await rest.export_session_trace_async(session)
        check(False, "export_session_trace_async")
    except Exception as e:
        check("not supported" in str(e) or "failed" in str(e).lower(), "export_session_trace_async is refused")


async def managing(check, rest, client):
    run = client.model_id
    path = client.save_weights_for_sampler("managed").result().path
    find = lambda: {c.tinker_path: c for c in rest.list_checkpoints(run).result().checkpoints}
    await rest.publish_checkpoint_from_tinker_path_async(path)
    check(find()[path].public, "publish_checkpoint_from_tinker_path_async")
    await rest.unpublish_checkpoint_from_tinker_path_async(path)
    check(not find()[path].public, "unpublish_checkpoint_from_tinker_path_async")
    await rest.set_checkpoint_ttl_from_tinker_path_async(path, 7200)
    check(find()[path].expires_at is not None, "set_checkpoint_ttl_from_tinker_path_async")
    check(refused(lambda: rest.set_checkpoint_ttl_from_tinker_path(path, 3599).result(), "at least 3600") is True,
          "a life of less than an hour is refused")
    await rest.assign_session_project_async(run.split(":")[0], "project-9")
    check(run in [r.training_run_id for r in rest.list_training_runs(project_id="project-9").result().training_runs],
          "assign_session_project_async")
    if hasattr(rest, "copy_weights_async"):
        copy = await rest.copy_weights_async(path, "project-9")
        check(copy != path and copy.split("/")[3:] == path.split("/")[3:], "copy_weights_async")
        await rest.delete_checkpoint_async(copy.split("/")[2], "sampler_weights/managed")
    if hasattr(rest, "get_checkpoint_archive_url"):
        urls = [rest.get_checkpoint_archive_url(run, "sampler_weights/managed").result(),
                await rest.get_checkpoint_archive_url_async(run, "sampler_weights/managed"),
                await rest.get_checkpoint_archive_url_from_tinker_path_async(path)]
        for link in urls:
            request = urllib.request.Request(link.url, method="HEAD")
            with urllib.request.urlopen(request) as answer:
                check(answer.status == 200 and int(answer.headers["Content-Length"]) > 0, "an archive's link")
    await rest.delete_checkpoint_from_tinker_path_async(path)
    check(path not in find(), "delete_checkpoint_from_tinker_path_async")
    for delete in rest.delete_checkpoint, rest.delete_checkpoint_async:
        client.save_weights_for_sampler("managed").result()
        gone = delete(run, "sampler_weights/managed")
        await gone if inspect.isawaitable(gone) else gone.result()
        check(path not in find(), delete.__name__)
    if hasattr(client, "save_weights_external_async"):
        path = (await awaited(client.save_weights_external_async("kept-outside"))).path
        links = await rest.get_external_weights_urls_async(path)
        with urllib.request.urlopen(links.urls["adapter_config.json"]) as answer:
            check(json.load(answer)["peft_type"] == "LORA", "save_weights_external_async, get_external_weights_urls_async")


def admin(check, url, rest):
    """The admin client of newer releases has what the REST client had."""
    if not hasattr(tinker, "AdminClient"):
        return
    who = tinker.AdminClient(base_url=url, api_key="tml-interop")
    check(who.get_telemetry() is None or who.get_telemetry(), "AdminClient.get_telemetry")
    log = who.get_audit_log().result()
    kinds = {e.event for e in log.entries}
    check({"checkpoint_create", "checkpoint_read", "checkpoint_delete", "checkpoint_publish"} <= kinds, f"audit events: {sorted(kinds)}")
    reads = [e for e in log.entries if e.event == "checkpoint_read"]
    check({e.purpose for e in reads} >= {"sampling", "training"} and
          all(e.event_details["action"] == {"type": "read", "purpose": e.purpose} and e.event_details["resource"] == "checkpoint" and
              e.event_details["tinker_path"] == e.tinker_path for e in reads), "reads say what for")
    check(all(e.event_details["organization_urn"].startswith("tml:organization:") and e.event_details["actor"]["type"] in ("user", "session")
              for e in log.entries), "every entry names an actor")
    check(who.get_audit_log("teams").result().entries == [], "there are no teams")
    check(who.get_audit_log("checkpoints").result() == log, "all events are of checkpoints")
    check(who.get_billing_usage(*last_hours()).result() == rest.get_billing_usage(*last_hours()).result(), "AdminClient.get_billing_usage")
    check(who.get_current_checkpoint_storage_usage().result() == rest.get_current_checkpoint_storage_usage().result(),
          "AdminClient.get_current_checkpoint_storage_usage")


async def admin_async(check, url):
    if not hasattr(tinker, "AdminClient"):
        return
    who = tinker.AdminClient(base_url=url, api_key="tml-interop")
    check((await on_their_loop(who, who.get_audit_log_async())).entries, "AdminClient.get_audit_log_async")
    check((await who.get_billing_usage_async(*last_hours())).data, "AdminClient.get_billing_usage_async")
    check((await who.get_current_checkpoint_storage_usage_async()).data, "AdminClient.get_current_checkpoint_storage_usage_async")


def tokenizers(check, service, client, sampler):
    """In the default configuration: no key, no hub. The server says where the files are."""
    text = "Fox and hen."
    by_training = client.get_tokenizer()
    if sampler.get_base_model() == "nano":  # since 0.38 the name that was given is kept: give one that can be opened
        named = client.save_weights_for_sampler("tokenized").result().path
        folder = ready(service.create_sampling_client(model_path=named)).get_base_model()
        sampler = ready(service.create_sampling_client(base_model=folder))
    by_sampling = sampler.get_tokenizer()
    check(by_training.decode(by_training.encode(text)) == text, "TrainingClient.get_tokenizer")
    check(by_sampling.encode(text) == by_training.encode(text), "SamplingClient.get_tokenizer")
    of_weights = client.save_weights_and_get_sampling_client()
    if of_weights.get_base_model() != "nano":
        check(of_weights.get_tokenizer().encode(text) == by_training.encode(text), "get_tokenizer of trained weights")
    same = service.create_sampling_client(base_model=sampler.get_base_model())
    check(same.get_base_model() == sampler.get_base_model(), "get_base_model is a name that the server takes")


def login(check, url):
    """What `tinker auth login` and `tinker auth logout` ask; older releases have neither."""
    try:
        from tinker.cli.auth_api import AuthApiError, TinkerAuthApi
    except ImportError:
        return
    import httpx
    with httpx.Client() as http:
        api = TinkerAuthApi(http, base_url=url)
        key = api.get_self_api_key("tml-interop")
        check(key.details.org_details.name == "local" and "@localhost" in key.details.user_details.email, "auth login: the key is read")
        try:
            api.delete_self_api_key("tml-interop")
            check(False, "auth logout: a key cannot be deleted")
        except AuthApiError as e:
            check("key file" in str(e), "auth logout: says where keys are")


def handles(check, url, service, client, sampler, saved):
    prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=6, seed=4)
    tokens = lambda c: [s.tokens for s in c.sample(prompt=prompt, num_samples=2, sampling_params=params).result().sequences]
    path = client.save_weights_for_sampler("handled").result().path
    by_client = client.create_sampling_client(path)
    check(tokens(by_client) == tokens(service.create_sampling_client(model_path=path)), "TrainingClient.create_sampling_client")
    made = type(sampler).create(service.holder, base_model="nano").result()
    check(tokens(made) == tokens(sampler), "SamplingClient.create")
    if hasattr(sampler, "get_sampler_handle"):
        copy = type(sampler).from_sampler_handle(sampler.get_sampler_handle(), api_key="tml-interop")
        check(tokens(copy) == tokens(sampler), "a sampler from its handle")
    resumed = service.create_training_client_from_state_with_optimizer(saved)
    check(resumed.get_info().model_data.model_name == "nano", "create_training_client_from_state_with_optimizer")
    future = sampler.compute_logprobs(prompt)
    check(len(future.result()) == 3, "compute_logprobs")
    asked = service.create_rest_client().whoami()
    try:
        check(asked.future().result().user_urn.startswith("tml:organization_user:"), "whoami names the user")
    except RuntimeError as e:  # a release that does not ask for a token
        check("JWT" in str(e), "whoami without tokens says why")
    login(check, url)
    sampler.on_queue_state_change(*queue_state(sampler))
    for one in service, client, sampler, service.create_rest_client():
        check(one.get_telemetry() is None or one.get_telemetry(), f"{type(one).__name__}.get_telemetry")
    if hasattr(service, "get_console_url"):
        check(client.model_id.split(":")[0] in service.get_console_url() and "train" in client.get_console_url(), "get_console_url")
    if hasattr(service, "copy_weights"):
        there = tinker.ServiceClient(base_url=url, api_key="tml-interop", project_id="project-10")
        copy = there.copy_weights(saved, ttl_seconds=3600).result()
        check(copy.split("/")[3:] == saved.split("/")[3:], "ServiceClient.copy_weights")


def queue_state(sampler):
    from tinker.lib.api_future_impl import QueueState
    return (QueueState.ACTIVE, None)[:len(inspect.signature(sampler.on_queue_state_change).parameters)]


def everything_else(check, loop, url, service, client, saved):
    logging.getLogger("tinker").setLevel(logging.CRITICAL)  # plain calls from a coroutine are meant here
    rest = RestClient(service.holder)
    sampler = ready(service.create_sampling_client(base_model="nano"))
    tokenizers(check, service, client, sampler)
    handles(check, url, service, client, sampler, saved)
    loop(reading(check, rest, saved))
    loop(managing(check, rest, client))
    admin(check, url, rest)
    loop(admin_async(check, url))
