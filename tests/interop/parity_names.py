"""Every public name of the Python SDK is in docs/parity.md.

Usage: parity_names.py ROOT TINKC, in an environment with the SDK. Enumerated: what the package offers, the types, the public
methods of the client classes, their parameters, the fields of the types, the variables of the environment that the SDK reads, the
paths and headers of its requests, and the commands with their options. A method stands in the page by its full name (of two twins
one is enough); a parameter, a field, a path, a header or an option needs no row where our headers, our wire messages or our
command have it under the same name. Our defaults must be the SDK's.
"""
import dataclasses, inspect, os, pathlib, re, subprocess, sys, warnings

warnings.simplefilter("ignore")
import click
import tinker
from sdk_surface import client_classes, public_methods
from tinker.cli.__main__ import main_cli

ROOT, TINKC = pathlib.Path(sys.argv[1]), os.path.abspath(sys.argv[2])
PAGE = (ROOT / "docs/parity.md").read_text()
WORD = r"[A-Za-z_][A-Za-z_0-9]*"
WORDS = set(re.findall(WORD, " ".join(re.findall(r"`[^`]*`", PAGE))))
HEADERS = {w for f in (ROOT / "include/tinkc").glob("*.h") for w in re.findall(WORD, f.read_text())}
WIRE = {w for f in (ROOT / "src/wire").iterdir() for w in re.findall(WORD, f.read_text())}
missing, looked = [], 0


def need(there, kind, name):
    global looked
    looked += 1
    if not there:
        missing.append(f"docs/parity.md lacks: {kind} {name}")


def package():
    for name in tinker.__all__:
        need(name in WORDS, "name", f"tinker.{name}")
    for name in dir(tinker.types):
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(getattr(tinker.types, name)):
            need(name in WORDS, "type", name)
            fields(name, getattr(tinker.types, name))


    for name in getattr(getattr(tinker, "auth", None), "__all__", ()):
        need(f"`tinker.auth.{name}`" in PAGE, "function", f"tinker.auth.{name}")


def fields(name, cls):
    names = list(getattr(cls, "model_fields", {}))
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls)]
    for field in names:
        plain = field.removesuffix("_np")
        if not field.startswith("_"):
            need({field, plain} & (WORDS | HEADERS | WIRE), "field", f"{name}.{field}")


def methods():
    for cls_name, cls in client_classes().items():
        parameters(f"{cls_name}(...)", cls.__init__)
        for name in public_methods(cls):
            member = inspect.getattr_static(cls, name)
            one = name.removesuffix("_async")
            need(any(re.search(rf"`{cls_name}\.{n}\b", PAGE) for n in (name, one)), "method", f"{cls_name}.{name}")
            member = getattr(member, "__func__", member)
            if callable(member):
                parameters(f"{cls_name}.{name}", inspect.unwrap(member))


def parameters(where, function):
    for name, p in inspect.signature(function).parameters.items():
        if name != "self" and not name.startswith("_") and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            need(name in WORDS | HEADERS, "parameter", f"{where} {name}")


def environment():
    for f in pathlib.Path(tinker.__file__).parent.rglob("*.py"):
        for name in re.findall(r"""environ(?:\.get\(|\[)\s*["'](\w+)|getenv\(\s*["'](\w+)""", f.read_text()):
            need((name[0] or name[1]) in WORDS, "variable", name[0] or name[1])


def requests():
    """Paths that the SDK asks for, and headers that it reads or writes by name."""
    endpoints = (ROOT / "src/wire/endpoint.c").read_text()
    ours = set(re.findall(r'"(/[^"]*)"', endpoints)) | {"/" + n for n in re.findall(r'FUTURE\(\w+,\s*"(\w+)"', endpoints)}
    last = {p.rstrip("/").split("/")[-1] for p in ours}
    sources = "".join(f.read_text() for f in (ROOT / "src").rglob("*.[ch]")).lower()
    for f in pathlib.Path(tinker.__file__).parent.rglob("*.py"):
        if f.name.endswith("_test.py"):
            continue
        text = f.read_text()
        for path in re.findall(r'"(/api/v1/[^"]+)"', text):
            end = re.sub(r"{[^}]*}", "{id}", path).split("/")[-1]
            need(end in last or f"`{path}`" in PAGE, "path", path)
        for header in re.findall(r'"(x-[a-z-]+)"', text, re.I):
            need(f'"{header.lower()}"' in sources or f"`{header.lower()}`" in PAGE.lower(), "header", header)


def commands(command, path):
    if not isinstance(command, click.Group):
        name = " ".join(path)
        need(f"`tinker {name}`" in PAGE, "command", f"tinker {name}")
        ours = subprocess.run([TINKC, "help", *path], capture_output=True, text=True).stdout
        for option in (o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)):
            need(re.search(rf"(?<!\S){re.escape(option)}\b", ours) or f"`{option}`" in PAGE, "option", f"tinker {name} {option}")
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        commands(command.get_command(context, name), [*path, name])


def same(what, ours, theirs):
    global looked
    looked += 1
    if ours != theirs:
        missing.append(f"default of {what}: ours is {ours}, the SDK's {theirs}")


def initial(macro):
    """The members of NAME_INIT in a header, as numbers and words."""
    text = " ".join(f.read_text() for f in (ROOT / "include/tinkc").glob("*.h"))
    body = re.search(rf"#define {macro}\s*\\?\s*{{(.*?)}}\s*\n(?:#|/\*)", text, re.S).group(1)
    words = re.findall(r"-?[\d.]+(?:e-?\d+)?f?|NULL|true|false", body)
    return [float(w.rstrip("f")) if w[0] in "-0123456789" else w for w in words]


def commented(header, member):
    """What the comment of an option says 0 stands for."""
    text = (ROOT / "include/tinkc" / header).read_text()
    return float(re.search(rf"\b{member};\s*/\*[^*]*?\b0 = ([\d ]+)", text).group(1).replace(" ", ""))


def defaults():
    from tinker import types
    from tinker._constants import DEFAULT_CONNECTION_LIMITS, DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT
    from tinker.lib.retry_handler import RetryConfig
    adam = types.AdamParams()
    same("AdamParams", initial("TINKC_ADAM_INIT")[:6],
         [adam.learning_rate, adam.beta1, adam.beta2, adam.eps, adam.weight_decay, adam.grad_clip_norm])
    if hasattr(types, "DimuonParams"):
        muon = types.DimuonParams(learning_rate=1)  # required: ours is initialised with one that is refused
        same("DimuonParams", initial("TINKC_DIMUON_INIT")[:3], [-1, muon.beta1, muon.grad_clip_norm])
    one = types.SamplingParams()
    assert one.max_tokens is None and one.stop is None and one.seed is None
    same("SamplingParams", initial("TINKC_SAMPLING_INIT")[5:8], [one.temperature, one.top_p, one.top_k])
    retry = RetryConfig()
    for ours, theirs in (("progress_timeout_ms", retry.progress_timeout), ("delay_base_ms", retry.retry_delay_base),
                         ("delay_max_ms", retry.retry_delay_max)):
        same(ours, commented("sample.h", ours), theirs * 1000)
    same("jitter", float(re.search(r"else (0\.\d+)", (ROOT / "include/tinkc/sample.h").read_text()).group(1)), retry.jitter_factor)
    for ours, theirs in (("connect_timeout_ms", DEFAULT_TIMEOUT.connect * 1000), ("idle_timeout_ms", DEFAULT_TIMEOUT.read * 1000),
                         ("max_retries", DEFAULT_MAX_RETRIES), ("max_connections", DEFAULT_CONNECTION_LIMITS.max_connections)):
        same(ours, commented("client.h", ours), theirs)
    rank = inspect.signature(tinker.ServiceClient.create_lora_training_client).parameters["rank"].default
    same("rank", commented("train.h", "rank"), rank)
    source = (ROOT / "src/wire/messages.inc").read_text()
    block = re.search(r"#define T tkc_config_response\n(.*?)#undef T", source, re.S).group(1)
    ours = dict(re.findall(r"DEFAULT\(\w+, (\w+), \w+, (.*?)\)", block))
    for name, field in types.ClientConfigResponse.model_fields.items():
        want = field.default
        want = {True: "true", False: "absent"}.get(want, f'"{want}"' if isinstance(want, str) else str(want)) if want != 0 else "absent"
        same(f"ClientConfigResponse.{name}", ours.get(name, "absent"), want)


package()
defaults()
methods()
environment()
requests()
commands(main_cli, [])
for line in missing:
    print(line)
assert looked > 700, looked
print(f"parity: {looked} names and defaults of tinker {tinker.__version__}, {len(missing)} missing or different")
sys.exit(bool(missing))
