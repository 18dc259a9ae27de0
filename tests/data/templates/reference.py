#!/usr/bin/env python3
"""Writes into units.json, sweep.json and golden.json here what Jinja2 3.1.6 itself renders.

    pip install jinja2==3.1.6 && python3 reference.py

units.json and sweep.json: small templates and the variables they see; a new one needs its "template" only, the rest is
written here. The *.jinja files are rendered over cases.json. The environment is the one in which
chat templates are used: sandboxed, trim_blocks, lstrip_blocks, loop controls, the generation tag, a tojson
without HTML escapes, raise_exception and strftime_now (frozen at 2025-07-26 15:04:05).
"""
import datetime, json, pathlib
import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

here = pathlib.Path(__file__).resolve().parent


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_out"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _out(self, context, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2025, 7, 26, 15, 4, 5).strftime
    return env


def render(text, variables):
    try:
        return {"text": environment().from_string(text).render(**variables)}
    except Exception as e:
        return {"error": type(e).__name__, "message": str(e)}


def units(path):
    """One case on each line."""
    old = json.loads(path.read_text())
    cases = [{**{k: case[k] for k in ("about", "template") if k in case},
              **render(case["template"], json.loads(json.dumps(old["context"])))} for case in old["cases"]]
    return '{"context": ' + json.dumps(old["context"]) + ', "cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n"


def golden():
    cases = json.loads((here / "cases.json").read_text())
    marks = json.loads((here / "marks.json").read_text())
    out = {}
    for path in sorted(here.glob("*.jinja")):
        bos, eos = marks.get(path.name, [None, "</s>"])
        results = {}
        for name, case in cases.items():
            kwargs = dict(case["kwargs"])
            variables = {"messages": case["messages"], "tools": case["tools"], "documents": kwargs.pop("documents", None)}
            variables.update({k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None})
            variables.update(kwargs)
            r = render(path.read_text(), variables)
            results[name] = r if "text" in r else {"error": r["error"] + ": " + r["message"]}
        out[path.name] = {"bos_token": bos, "eos_token": eos, "results": results}
    return out


def one_each(templates):
    """A rendering on a line."""
    results = lambda t: ",\n".join(f"  {json.dumps(name)}: {json.dumps(r)}" for name, r in t["results"].items())
    heads = lambda t: "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in t.items() if k != "results")
    return "{\n" + ",\n".join(f'{json.dumps(n)}: {{{heads(t)}"results": {{\n{results(t)}\n}}}}' for n, t in templates.items()) + "\n}\n"


if __name__ == "__main__":
    for path in (here / "units.json", here / "sweep.json"):
        path.write_text(units(path))
    if (here / "cases.json").exists():
        (here / "golden.json").write_text(one_each(golden()))
