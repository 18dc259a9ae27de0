"""Runs the commands of tests/cli/transcripts/NAME.txt and compares all that they write with what stands there.

    transcript_test.py BUILD [--update] [NAME...]     --update writes the files again: read the difference

A transcript is commands and what they answer, in order, in one shell's folder with a home of its own and a service
that always says the same (stub.py):

    $ tinkc run info missing        commands for bash; lines that begin with "> " continue them
    a line of standard output
    ! a line of standard error
    [3]                             the exit code of tinkc, or of all of it, where it is not 0
    # a comment, or a blank line: ends what the command wrote
    & NAME                          continues in the folder in which that transcript ends

`requests` shows what the service was asked. The service's address reads URL, the home HOME, the shipped model NANO. A transcript that
names $HUB has a hub of its own, at that address. A backslash before a line of output, or behind
it, keeps it apart from the transcript's own lines.
"""
import concurrent.futures, difflib, os, pathlib, random, shutil, subprocess, sys, tempfile
import stub, stub_trainer

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "support/client"))
import hub_server
build = pathlib.Path(sys.argv[1]).resolve()
stub.ROUTES[:0] = stub_trainer.ROUTES
nano = here.parent.parent / "models" / "nano"
names = [a for a in sys.argv[2:] if not a.startswith("-")]
kept = ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "TINKC_MUTANT", "TINKC_MUTANT_MAP",
        "LD_PRELOAD", "SHAKE", "LATE_MS")  # of tests/preload


# Each call of the command is followed by what it wrote to standard error and its exit code, also inside a loop.
# line joins lines to one. refused shows so how it ends, why, and its hint; requests what the service was asked since it was called last; await.sh waits for what a program beside the commands writes.
PRELUDE = """umask 022
. "$TESTS/../support/await.sh"
requests() { [ ! -e "$SEEN" ] || grep -v /client/config "$SEEN"; rm -f "$SEEN"; }
tinkc() { command tinkc "$@" 2> "$ERRORS"; local code=$?; sed 's/^/! /' "$ERRORS"; [ $code = 0 ] || echo "[$code]"; }
line() { paste -sd' ' | sed -E 's/[[:space:]]+/ /g'; }
refused() { command tinkc "$@" > /dev/null 2> "$ERRORS"; echo "[$?] $(sed -E 's/^error: //; s/^hint: /-> /' "$ERRORS" | paste -sd' ')"; }
"""


def new_home():
    """A new folder. Its name has no digits: transcripts that mask numbers and times leave it alone."""
    while True:
        path = os.path.join(tempfile.gettempdir(), "tinkc-transcript-" + "".join(random.choices("abcdefghijk", k=16)))
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            pass


class Place:
    """Where the commands of one transcript run."""

    def __init__(self, needs_hub):
        server, self.url = stub.start()
        self.hub = hub_server.Hub().url if needs_hub else "no hub"
        self.home = new_home()
        server.log = f"{self.home}.seen"
        self.env = {"PATH": f"{build}:{os.environ['PATH']}", "HOME": self.home, "LC_ALL": "C.UTF-8", "TZ": "UTC", "URL": self.url,
                    "TINKER_BASE_URL": self.url, "TINKER_API_KEY": "tml-test", "NANO": str(nano), "TINKC_NANO": str(nano),
                    "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "ERRORS": f"{self.home}.errors", "SEEN": server.log,
                    "TESTS": str(here), "HUB": self.hub}
        self.env.update((k, os.environ[k]) for k in kept if k in os.environ)

    def plain(self, text):
        for long, short in ((self.url, "URL"), (self.hub, "HUB"), (self.url.removeprefix("http://"), "ADDRESS"), (str(nano), "NANO"), (self.home, "HOME")):
            text = text.replace(long, short)
        return text

    def answer(self, command):
        """What the command writes, as the transcript has it."""
        r = subprocess.run(["bash", "-c", PRELUDE + command], env=self.env, cwd=self.home, capture_output=True, text=True, errors="backslashreplace",
                           stdin=subprocess.DEVNULL, timeout=300)
        lines = self.plain(r.stdout).splitlines() + ["! " + line for line in self.plain(r.stderr).splitlines()]
        return [escaped(line) for line in lines] + ([f"[{r.returncode}]"] if r.returncode else [])


def escaped(line):
    """A line of output that would be taken for a line of the transcript begins with a backslash; one that ends with a blank ends with one."""
    return ("\\" if not line or line[:2] in ("$ ", "# ", "> ", "& ") else "") + line + ("\\" if line.endswith(" ") else "")


def go_there(place, path):
    """Runs the commands of a transcript, and of the one that it continues, for what they leave behind."""
    command = []
    for line in path.read_text().splitlines() + ["$ true"]:
        if line.startswith("& "):
            go_there(place, path.parent / f"{line[2:]}.txt")
        elif line.startswith("> "):
            command.append(line[2:])
        elif line.startswith("$ "):
            if command:
                place.answer("\n".join(command))
            command = [line[2:]]


def run(path):
    """The transcript's lines, and what they are when it is run."""
    wanted, got, i = path.read_text().splitlines(), [], 0
    place = Place(any("$HUB" in line for line in wanted))
    while i < len(wanted):
        got.append(wanted[i])
        if wanted[i].startswith("& "):
            go_there(place, path.parent / f"{wanted[i][2:]}.txt")
        if not wanted[i].startswith("$ "):
            i += 1
            continue
        command = [wanted[i][2:]]
        i += 1
        while i < len(wanted) and wanted[i].startswith("> "):
            command.append(wanted[i][2:])
            got.append(wanted[i])
            i += 1
        got += place.answer("\n".join(command))
        while i < len(wanted) and wanted[i] and wanted[i][:2] not in ("$ ", "# "):
            i += 1
        if "TINKC_MUTANT" in os.environ and got != wanted[:i]:
            break  # a planted fault is noticed once
    shutil.rmtree(place.home, ignore_errors=True)
    for ending in ("errors", "seen"):
        pathlib.Path(f"{place.home}.{ending}").unlink(missing_ok=True)
    return wanted, got


failed = 0
# The longest first, so that the workers end at about the same time.
wanted_paths = sorted((p for p in (here / "transcripts").glob("*.txt") if not names or p.stem in names), key=lambda p: (-p.stat().st_size, p))
with concurrent.futures.ThreadPoolExecutor(6) as pool:  # each has a folder and a service of its own; most of them wait
    for path, (wanted, got) in zip(wanted_paths, pool.map(run, wanted_paths)):
        if "--update" in sys.argv:
            path.write_text("\n".join(got) + "\n")
        elif wanted != got:
            failed += 1
            print("\n".join(difflib.unified_diff(wanted, got, f"{path.name}, as it should be", "as it is", lineterm="")))
print(f"transcripts: {failed} differ. If what is new is right: python3 tests/cli/transcript_test.py BUILD --update, and read git diff"
      if failed else "transcripts: all as they should be")
sys.exit(bool(failed))
