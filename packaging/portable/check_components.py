"""check_components.py WHEEL PART BUILD TARGET...: every library that the linker took is in components.tsv, and the other way round; the
wheel's SBOM names each, and its terms are in the wheel. Prints what is wrong and exits with 1.

BUILD is the folder where ninja linked the TARGETs; PART p: the program and libtinkc, c: the module for GPUs.
"""

import json
import pathlib
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ALWAYS = {"zig (compiler runtime)": "zig.txt"}  # the linker's own
CUDA = {"CUDA runtime (static)": "cuda.txt"}


def read_table(text):
    """Rows of components.tsv: (name, Debian package, licence, parts, files)."""
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, package, licence, parts, [file for file in files.split() if file != "-"])
            for name, package, licence, parts, files in rows]


def linked_archives(command, build):
    """Base names of the static libraries in a linker's command, without those that the build made itself."""
    found = set()
    for word in command.split():
        path = pathlib.Path(word)
        if path.suffix == ".a" and pathlib.Path(build) not in (pathlib.Path(build) / path).parents:
            found.add(path.name)
    return found


def compare_link(rows, part, archives):
    """Problems: a library that is linked and not listed, or listed and not linked."""
    known = {file: name for name, _, _, parts, files in rows if part_of(part) & set(parts) for file in files}
    known |= {"libcudart_static.a": "CUDA runtime (static)"} if part == "c" else {}
    problems = [f"{file} is linked in, but components.tsv does not list it" for file in sorted(archives - set(known))]
    return problems + [f"{known[file]}: components.tsv lists {file}, which is not linked in" for file in sorted(set(known) - archives)]


def part_of(part):
    return set("pl") if part == "p" else {"c"}


def compare_wheel(rows, part, sbom, names):
    """Problems: a component that the SBOM lacks, without a version or licence, or whose terms are not in the wheel."""
    terms = {name: package + ".txt" for name, package, _, parts, _ in rows if part_of(part) & set(parts)}
    terms |= ALWAYS | (CUDA if part == "c" else {})
    listed = {c["name"]: c for c in sbom["components"]}
    licences = {name.split("/licenses/")[1] for name in names if "/licenses/" in name}
    problems = [f"{name}: not in the SBOM" for name in terms if name not in listed]
    problems += [f"{name}: in the SBOM, but not linked in" for name in listed if name not in terms]
    problems += [f"{name}: no version or no licence in the SBOM" for name, c in listed.items() if not (c.get("version") and c.get("licenses"))]
    problems += [f"{name}: its terms ({file}) are not in the wheel" for name, file in terms.items() if file not in licences]
    return problems + ([] if "LICENSE" in licences else ["tinkc's own LICENSE is not in the wheel"])


def main(wheel, part, build, *targets):
    rows = read_table((HERE / "components.tsv").read_text())
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", *targets], check=True, capture_output=True, text=True).stdout
    links = [line for line in commands.splitlines() if " cc -target " in line]
    with zipfile.ZipFile(wheel) as files:
        sbom = json.loads(files.read(next(n for n in files.namelist() if n.endswith(".cdx.json"))))
        problems = compare_wheel(rows, part, sbom, files.namelist())
    problems += compare_link(rows, part, linked_archives(" ".join(links), build))
    print("\n".join(problems) or f"SBOM: {len(sbom['components'])} components, each linked in, with its terms")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
