"""The Python SDK under the same load as bench/client_cost.c: `client_cost.py sample URL N` or `client_cost.py start URL`."""
import json, os, resource, sys, time

begun = time.monotonic()
os.environ["TINKER_TELEMETRY"] = "0"
os.environ["TINKER_API_KEY"] = "tml-bench"
import tinker  # noqa: E402


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sample(url, n):
    service = tinker.ServiceClient(base_url=url)
    client = service.create_sampling_client(base_model="bench/model")
    prompt = tinker.ModelInput.from_ints(list(range(2000, 2100)))
    params = tinker.SamplingParams(max_tokens=50)
    spent, start = cpu(), time.monotonic()
    futures = [client.sample(prompt=prompt, num_samples=1, sampling_params=params) for _ in range(n)]
    submitted = time.monotonic()
    good = sum(len(f.result().sequences[0].tokens) == 50 for f in futures)
    end = time.monotonic()
    print(json.dumps({"sdk": f"python {tinker.__version__}", "samples": n, "complete": good,
                      "seconds": round(end - start, 3), "submit_seconds": round(submitted - start, 3),
                      "cpu_us_each": round((cpu() - spent) * 1e6 / n, 1), "peak_mb": round(peak_mb(), 1)}))


def start(url):
    runs = tinker.ServiceClient(base_url=url).create_rest_client().list_training_runs().result().training_runs
    print(json.dumps({"sdk": f"python {tinker.__version__}", "runs": len(runs),
                      "ms": round((time.monotonic() - begun) * 1000, 2), "cpu_ms": round(cpu() * 1000, 2),
                      "peak_mb": round(peak_mb(), 1)}))


if sys.argv[1] == "sample":
    sample(sys.argv[2], int(sys.argv[3]))
else:
    start(sys.argv[2])
sys.stdout.flush()
os._exit(0)
