"""What packaging/make-wheel writes and checks: the wheel's records, its terms, and the list of what is linked in."""

import base64
import csv
import hashlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "packaging/portable")]

import check_components  # noqa: E402

ZLIB = ("zlib", "zlib1g-dev", "Zlib", "p", ["libz.a"])
ZSTD = ("zstd", "libzstd-dev", "BSD-3-Clause", "pl", ["libzstd.a"])
START = ("start files", "libc6-dev", "LGPL-2.1-or-later", "plc", [])


def component(name, version="1", licence="MIT"):
    return {"name": name, "version": version, "licenses": [{"license": {"id": licence}}]}


class Linked(unittest.TestCase):
    def test_the_link_and_the_table_must_agree(self):
        cases = (
            ("both", "p", {"libz.a", "libzstd.a"}, []),
            ("not listed", "p", {"libz.a", "libzstd.a", "libnew.a"}, ["libnew.a is linked in, but components.tsv does not list it"]),
            ("not linked", "p", {"libzstd.a"}, ["zlib: components.tsv lists libz.a, which is not linked in"]),
            ("of another part", "c", {"libcudart_static.a", "libz.a"}, ["libz.a is linked in, but components.tsv does not list it"]),
            ("the CUDA runtime", "c", set(), ["CUDA runtime (static): components.tsv lists libcudart_static.a, which is not linked in"]),
        )
        for name, part, archives, wanted in cases:
            with self.subTest(name):
                self.assertEqual(check_components.compare_link([ZLIB, ZSTD, START], part, archives), wanted)

    def test_only_libraries_of_others_count(self):
        command = "zig cc a.o libtinkc.a sub/libown.a /b/libengine.a -o tinkc /usr/lib/libz.a -lm /usr/lib/libc.so"
        self.assertEqual(check_components.linked_archives(command, "/b"), {"libz.a"})

    def test_every_row_of_the_table_is_complete(self):
        for row in check_components.read_table((ROOT / "packaging/portable/components.tsv").read_text()):
            self.assertTrue(all(row[:4]), row)
            self.assertLessEqual(set(row[3]), set("plcm"), row)


class Listed(unittest.TestCase):
    ROWS = (ZLIB,)
    TERMS = ("x.dist-info/licenses/LICENSE", "x.dist-info/licenses/zlib1g-dev.txt", "x.dist-info/licenses/zig.txt")

    def problems(self, components, names=TERMS):
        return check_components.compare_wheel(self.ROWS, "p", {"components": components}, names)

    def test_each_component_is_in_the_sbom_with_version_licence_and_terms(self):
        zig, zlib = component("zig (compiler runtime)"), component("zlib")
        self.assertEqual(self.problems([zig, zlib]), [])
        self.assertEqual(self.problems([zig]), ["zlib: not in the SBOM"])
        self.assertEqual(self.problems([zig, zlib, component("zstd")]), ["zstd: in the SBOM, but not linked in"])
        self.assertEqual(self.problems([zig, component("zlib", "")]), ["zlib: no version or no licence in the SBOM"])
        for missing, problem in zip(
            self.TERMS,
            (
                "tinkc's own LICENSE is not in the wheel",
                "zlib: its terms (zlib1g-dev.txt) are not in the wheel",
                "zig (compiler runtime): its terms (zig.txt) are not in the wheel",
            ),
            strict=True,
        ):
            self.assertEqual(self.problems([zig, zlib], [n for n in self.TERMS if n != missing]), [problem])


@unittest.skipIf(sys.version_info < (3, 11), "the builder needs tomllib")
class Written(unittest.TestCase):
    def write(self, folder, name="tinkc"):
        import backend

        tree = pathlib.Path(folder, "tree")
        for path, text in (
            ("package/tinkc/__init__.py", ""),
            ("scripts/tinkc", "#!/bin/sh\n"),
            ("data/share/tinkc/models/nano/config.json", "{}"),
            ("licences/LICENSE", "terms"),
            ("sboms/tinkc.cdx.json", json.dumps({"components": [component("z", licence="Zlib"), component("b", licence="curl")]})),
        ):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
        (tree / "scripts/tinkc").chmod(0o755)
        out = pathlib.Path(tempfile.mkdtemp(dir=folder))
        return backend.write(tree, "manylinux_2_28_x86_64", "1.2.3", out, name)

    def metadata(self, name):
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(self.write(folder, name)) as wheel:
            return wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode().splitlines()

    def test_the_record_has_the_hash_of_every_file(self):
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(self.write(folder)) as wheel:
            record = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read("tinkc-1.2.3.dist-info/RECORD").decode())) if row}
            self.assertEqual(set(record), set(wheel.namelist()))
            for name in set(record) - {"tinkc-1.2.3.dist-info/RECORD"}:
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                self.assertEqual(record[name], f"sha256={digest}", name)
            self.assertTrue(wheel.getinfo("tinkc-1.2.3.data/scripts/tinkc").external_attr >> 16 & 0o100)

    def test_the_same_files_give_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            one = self.write(folder)
            os.utime(pathlib.Path(folder, "tree/licences/LICENSE"), (1, 1))
            self.assertEqual(one.read_bytes(), self.write(folder).read_bytes())

    def test_the_metadata_name_the_terms_of_all_that_is_inside(self):
        lines = self.metadata("tinkc")
        self.assertIn("License-Expression: Apache-2.0 AND curl AND Zlib", lines)
        self.assertIn("License-File: LICENSE", lines)

    def test_the_extra_installs_the_module_of_the_same_release(self):
        self.assertIn('Requires-Dist: tinkc-cuda==1.2.3; extra == "cuda"', self.metadata("tinkc"))
        module = self.metadata("tinkc-cuda")
        self.assertIn("Requires-Dist: tinkc==1.2.3", module)
        self.assertTrue(any(line.startswith("Requires-Dist: nvidia-cublas") for line in module))

    def test_tinkc_alone_depends_on_nothing(self):
        needs = [line for line in self.metadata("tinkc") if line.startswith("Requires-Dist")]
        self.assertTrue(all("extra ==" in line for line in needs), needs)


if __name__ == "__main__":
    unittest.main()
