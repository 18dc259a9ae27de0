"""Writes the wheels: a zip archive with the package, the program, its files and their records. Standard library only.

    backend.py TREE TAG VERSION OUT [--name NAME]

TREE holds what the wheel is made of: ``package/`` (modules), and where they exist ``scripts/``, ``data/``, ``licences/`` and
``sboms/``. TAG is the platform, such as manylinux_2_28_x86_64. pyproject.toml beside this file has the other fields; NAME
tinkc-cuda means those of pyproject-cuda.toml. The same input gives the same bytes (SOURCE_DATE_EPOCH).

As a build backend it only says how the wheel is built: pip cannot build the program.
"""

import argparse
import base64
import hashlib
import json
import os
import pathlib
import stat
import time
import zipfile

import tomllib

HERE = pathlib.Path(__file__).resolve().parent


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    raise SystemExit("tinkc: this wheel holds a C program; run `make wheel` in the repository and install build/wheel/*.whl")


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    raise SystemExit("tinkc: `make dist` in the repository makes the source archive")


def pinned(need: str, version: str) -> str:
    """The two wheels of one release belong together."""
    return f"{need}=={version}" if need in ("tinkc", "tinkc-cuda") else need


def licence_expression(own: str, sboms: list[dict]) -> str:
    """The terms of all that the wheel holds: tinkc's own first, then those of what is linked in, each once."""
    kinds = [kind for sbom in sboms for component in sbom["components"] for kind in component["licenses"]]
    others = {kind.get("expression") or kind["license"].get("id") or kind["license"]["name"] for kind in kinds}
    return " AND ".join([own, *sorted(others - {own}, key=str.lower)])


def metadata(project: dict, version: str, licence: str, licences: list[str]) -> str:
    """PKG-INFO of core metadata 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
    ]
    lines += [f"License-Expression: {licence}", *(f"License-File: {name}" for name in licences)]
    lines += ["Keywords: " + ",".join(project.get("keywords", []))] if project.get("keywords") else []
    lines += [f"Classifier: {c}" for c in project.get("classifiers", [])]
    lines += [f"Project-URL: {name}, {url}" for name, url in project.get("urls", {}).items()]
    lines.append(f"Requires-Python: {project['requires-python']}")
    lines += [f"Requires-Dist: {pinned(need, version)}" for need in project.get("dependencies", [])]
    for extra, needs in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {pinned(need, version)}; extra == "{extra}"' for need in needs]
    text = (HERE / project["readme"]).read_text()
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", text])


def entry_points(project: dict) -> str:
    groups = project.get("entry-points", {})
    return "\n".join(f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for g, rows in groups.items())


class Wheel:
    def __init__(self, path: pathlib.Path, info: str) -> None:
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.info, self.record = info, []
        self.time = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, self.time)
        entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def add_folder(self, folder: pathlib.Path, prefix: str) -> None:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            self.add(prefix + path.relative_to(folder).as_posix(), path.read_bytes(), bool(path.stat().st_mode & 0o111))

    def close(self) -> None:
        name = f"{self.info}/RECORD"
        self.record.append(f"{name},,\n")
        self.zip.writestr(zipfile.ZipInfo(name, self.time), "\n".join(self.record))
        self.zip.close()


def write(tree: pathlib.Path, tag: str, version: str, out: pathlib.Path, name: str) -> pathlib.Path:
    file = "pyproject.toml" if name == "tinkc" else "pyproject-cuda.toml"
    project = tomllib.loads((HERE / file).read_text())["project"]
    base = f"{name.replace('-', '_')}-{version}"
    path = out / f"{base}-py3-none-{tag}.whl"
    wheel = Wheel(path, f"{base}.dist-info")
    wheel.add_folder(tree / "package", "")
    wheel.add_folder(tree / "scripts", f"{base}.data/scripts/")
    wheel.add_folder(tree / "data", f"{base}.data/data/")
    wheel.add_folder(tree / "licences", f"{wheel.info}/licenses/")
    wheel.add_folder(tree / "sboms", f"{wheel.info}/sboms/")
    licences = sorted(p.relative_to(tree / "licences").as_posix() for p in (tree / "licences").rglob("*") if p.is_file())
    sboms = [json.loads(p.read_text()) for p in sorted((tree / "sboms").glob("*.json"))]
    licence = licence_expression(project["license"], sboms)
    wheel.add(f"{wheel.info}/METADATA", metadata(project, version, licence, licences).encode())
    fields = ["Wheel-Version: 1.0", "Generator: tinkc", "Root-Is-Purelib: false", f"Tag: py3-none-{tag}"]
    wheel.add(f"{wheel.info}/WHEEL", ("\n".join(fields) + "\n").encode())
    if points := entry_points(project):
        wheel.add(f"{wheel.info}/entry_points.txt", points.encode())
    wheel.close()
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for argument in ("tree", "tag", "version", "out"):
        parser.add_argument(argument)
    parser.add_argument("--name", default="tinkc")
    given = parser.parse_args()
    print(write(pathlib.Path(given.tree), given.tag, given.version, pathlib.Path(given.out), given.name))
