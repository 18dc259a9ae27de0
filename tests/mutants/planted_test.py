#!/usr/bin/env python3
"""Which faults tools/mutate.py plants in samples of C, which it does not, and that the planted ones can be switched on.

    python3 tests/mutants/planted_test.py

Each row below is a sample and, for each fault in it, "operator: text after the change". A rule of tools/mutate.py
that says what is not planted has a row with its sample here, beside one that shows where the rule ends.
"""
import os, pathlib, shlex, subprocess, sys, tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import mutate

# Statements of a function, and their faults.
STATEMENTS = [
    # what is planted
    ("if (a < b) return 7;", "negated: ! ( a < b )", "operator: a <= b", "number: 8"),
    ("if (a == b) g();", "operator: a != b", "removed:"),  # the negation is the same fault
    ("if (a == b && c) g();", "negated: ! ( a == b && c )", "operator: a != b && c", "operator: a == b || c", "removed:"),
    ("while (a) b += 2;", "negated: ! ( a )", "removed:", "operator: b -= 2", "number: b += 3"),
    ("for (int i = 0; i < n; i++) g(i);", "operator: i + 1 < n", "removed:"),
    ("return a + b * c;", "operator: a - b * c", "operator: a + b / c"),
    ("return a << 1 | b;", "operator: a >> 1 | b", "number: a << 2 | b", "operator: a << 1 & b"),
    ("int c = 5; double d = 0.5;", "number: 6", "number: 1.0"),
    ("ok = true;", "removed:", "truth: ok = false"),
    ("g(-1);", "removed:", "number: g ( - 0 )"),
    ("struct s x = { 1, .b = 2 };", "number: 2", "number: 3"),
    ("(void)g(3);", "removed:", "number: ( void ) g ( 4 )"),
    # faults of meaning: order
    ("put(f, 1); put(f, 2);", "removed:", "number: put ( f , 2 )", "swapped: put ( f , 2 ) ; put ( f , 1 )", "removed:", "number: put ( f , 3 )"),
    ("put(f); get(q);", "removed:", "removed:"),  # nothing in common
    ("put(f, err); get(q, err);", "removed:", "removed:"),
    ("a = 4; b = a;", "removed:", "number: a = 5", "swapped: b = a ; a = 4", "removed:"),
    ("a = 4; b = 5;", "removed:", "number: a = 5", "removed:", "number: b = 6"),
    ("s->n = 4; g(s);", "removed:", "number: s -> n = 5", "swapped: g ( s ) ; s -> n = 4", "removed:"),
    ("if (a) put(f); get(f);", "negated: ! ( a )", "removed:", "removed:"),  # one of them is conditional
    ("free(f); put(f);", "removed:"),
    ("if (!write(f) || !sync(f)) g();", "negated: ! ( ! write ( f ) || ! sync ( f ) )",
     "operator: ! write ( f ) && ! sync ( f )", "swapped: ! sync ( f ) || ! write ( f )", "removed:"),
    ("ok = place(f) && trim(f);", "removed:", "operator: ok = place ( f ) || trim ( f )", "swapped: ok = trim ( f ) && place ( f )"),
    ("ok = f->n && trim(f);", "removed:", "operator: ok = f -> n || trim ( f )"),
    # locks
    ("pthread_mutex_lock(&m); n++; pthread_mutex_unlock(&m);", "removed:", "unlocked:"),
    ("pthread_mutex_lock(&m); if (a) { pthread_mutex_unlock(&m); return 7; } pthread_mutex_unlock(&m);", "negated: ! ( a )",
     "number: 8", "unlocked:"),
    ("pthread_mutex_lock(&m); pthread_mutex_unlock(&o);",),
    ("pthread_mutex_lock(&m); tkc_cond_wait_until(&c, &m, t); pthread_mutex_unlock(&m);", "removed:"),
    # units
    ("t = 60000;", "removed:", "number: t = 60001", "scaled: t = 60"),
    ("t = s * 1000;", "removed:", "operator: t = s / 1000", "number: t = s * 1001", "scaled: t = s * 1"),
    ("t = 60500; u = 300;", "removed:", "number: t = 60501", "removed:", "number: u = 301"),
    # what an error path takes back
    ("if (!ok) a = b;", "negated: ! ( ! ok )", "undo: 0", "removed:"),
    ("if (tkc_failed(err)) { a = b; c = d; }", "negated: ! ( tkc_failed ( err ) )", "undo: 0", "removed:", "removed:"),
    ("if (!ok) { a = b; return c; }", "negated: ! ( ! ok )", "removed:"),
    ("if (!ok) a = b; else c = d;", "negated: ! ( ! ok )", "removed:", "removed:"),
    ("if (a) b = c;", "negated: ! ( a )", "removed:"),
    ("if (!ok) { unlink(p); return c; }", "negated: ! ( ! ok )", "undo:"),
    ("unlink(p);",),
    # log lines, releases, locks
    ("log_warn(x, 3); if (a) tkc_log(3);",),
    ("if (a) tkc_log(3); else g();", "negated: ! ( a )", "removed:"),
    ("free(p); close(fd); freeaddrinfo(a); if (p) free(p); if (fd >= 0) close(fd);",),
    ("lib.c_free(c); (void)x->ops.c_close(3);", "number: ( void ) x -> ops . c_close ( 4 )"),
    ("x_free_all(&a); free_x(a); freed(a);", "removed:"),
    ("lib.c_set(c); x->free_ones = g();", "removed:", "removed:"),
    ("execl(p, a); _exit(127); _exit(3);", "removed:", "removed:", "number: _exit ( 4 )"),
    ("if (p) free(q);", "negated: ! ( p )"),
    ("pthread_mutex_lock(&m); assert(a > 3);",),
    # memory
    ("p = malloc(n + 1); if (!p) return 7;", "removed:", "negated: ! ( ! p )"),
    ("p = g(n + 1); if (!p) return 7;", "removed:", "operator: p = g ( n - 1 )", "number: p = g ( n + 2 )", "negated: ! ( ! p )", "number: 8"),
    ("out->no_memory = true;",),
    ("out->no_memory = out->no_memory || in->no_memory;",),
    ("memcpy(p, q, n - 1);", "removed:"),
    ("snprintf(t, sizeof t - 1, x, a + 1);", "removed:", "operator: snprintf ( t , sizeof t - 1 , x , a - 1 )",
     "number: snprintf ( t , sizeof t - 1 , x , a + 2 )"),
    ("gethostname(t, sizeof t - 1);", "removed:"),
    ("x = (type){ 0 };", "removed:"),
    ("n = sizeof a / sizeof *a;", "removed:"),
    ("cap = cap ? 2 * cap : 64;",),
    ("if (n + 1 > cap) { cap = cap ? 2 * cap : 64; }", "negated: ! ( n + 1 > cap )"),
    ("size_t cap = 0; g(getline(&l, &cap, f));", "removed:"),
    ("size_t cap = 0; g(cap);", "number: 1", "removed:"),
    # times, masks, characters, text
    ("usleep(50); (void)poll(&p, 1, 5); madvise(p, 3, 4);",),
    ("n = poll(&p, 1, 5);", "removed:", "number: n = poll ( & p , 1 , 6 )"),
    ("b = t <= cli_now_us(); c = t + cli_now_us() < u;", "removed:", "removed:", "operator: c = t - cli_now_us ( ) < u", "operator: c = t + cli_now_us ( ) <= u"),
    ("t = tkc_deadline_ns(50);", "removed:"),
    ("m = 0xff; k = 0644; c = 'a'; s = \"12\"; e = 0.00001;", *["removed:"] * 5),
    # the same when both sides are equal
    ("return a < b ? a : b;",),
    ("return a < b ? b : c;", "operator: a <= b ? b : c"),
    ("if (a > most) most = a;", "negated: ! ( a > most )", "removed:"),
    ("return a > b ? a - b : 0;", "operator: a > b ? a + b : 0", "number: a > b ? a - b : 1"),
    ("return n < 60 ? n : 60;", "number: n < 60 ? n : 61"),
    ("if (fd < 0) return 7;", "negated: ! ( fd < 0 )", "number: 8"),
    ("while (getline(&l, &n, f) > 0) g();", "negated: ! ( getline ( & l , & n , f ) > 0 )", "number: getline ( & l , & n , f ) > 1", "removed:"),
    ("return (a > b) - (a < b);", "operator: ( a > b ) + ( a < b )"),
    ("return a < b ? 1 : -1;", "operator: a <= b ? 1 : - 1", "number: a < b ? 2 : - 1"),
    ("return a != b && a < b;", "operator: a == b && a < b", "operator: a != b || a < b"),
    ("fd = open(n, O_RDONLY | O_CLOEXEC);", "removed:"),
    ("fd = open(n, O_RDONLY | O_CREAT);", "removed:", "operator: fd = open ( n , O_RDONLY & O_CREAT )"),
    ("TKE_FAILPOINT(\"a\");",),
    # tables inside a function
    ("static const int t[] = { 1, 0, -1 }; g(t);", "table: t: { 2 , 0 ,", "table: t: { 1 , 0 , - 0 }", "removed:"),
]

# Whole files: path, text, faults.
FILES = [
    ("src/a/a.c", "enum { A, B = 1, MOST = 20, ROOM = 2 * 5, READ_BUFFER = 3 };", "constant: MOST = 21", "constant: MOST = 40",
     "constant: ROOM = 11", "constant: ROOM = 20"),
    ("src/a/a.c", "#define N 7\n#define LIMIT 3 /* why */\n#define F(x) 3\n#define CHUNK 8\n", "constant: N = 8", "constant: N = 14",
     "constant: LIMIT = 4", "constant: LIMIT = 6"),
    ("src/a/a.c", "enum { WAIT_MS = 100 };", "constant: WAIT_MS = 101", "constant: WAIT_MS = 200", "scaled: WAIT_MS = 100000"),
    ("src/a/a.c", "enum { LIMIT_MS = 3000, MOST_BYTES = 5 };", "constant: LIMIT_MS = 3001", "constant: LIMIT_MS = 6000", "scaled: LIMIT_MS = 3",
     "constant: MOST_BYTES = 6", "constant: MOST_BYTES = 10"),
    ("cli/a.c", "enum { REPLY_TIMEOUT_MS = 100 };", "constant: REPLY_TIMEOUT_MS = 200", "scaled: REPLY_TIMEOUT_MS = 100000"),
    ("src/a/a.c", "struct s { int begin, end; char *name; int reserved, left; };\nint f(struct s *x) { return g(x->begin, x->name, x->left); }",
     "neighbour: g ( x -> end , x -> name , x -> left )"),
    ("cli/a.c", "enum { WAIT_MS = 100 };", "constant: WAIT_MS = 200"),
    ("src/a/a.c", 'enum { RED = 1, BLUE };\nstatic const row t[] = { { "512", RED, true }, { "x", BLUE, MUST } };',
     'table: t: { { "513" , RED ,', 'table: t: { { "512" , BLUE , true }', 'table: t: { { "512" , RED , false } , {',
     'table: t: true } , { "x" , RED , MUST }', 'table: t: , { "x" , BLUE , 0 } }'),
    ("src/a/a.c", "static int counter = 3;",),  # not const: state, not a table
    ("src/a/a.c", "void a_free(a *x) { for (int i = 0; i < n; i++) g(x[i]); x->p = NULL; }", "removed:"),
    ("src/a/a.c", "void a_open(a *x) { for (int i = 0; i < n; i++) g(x[i]); x->p = NULL; }", "operator: i + 1 < n", "removed:", "removed:"),
]


def faults(path, text):
    return [f"{f.operator}: {f.after}".strip() for _, _, f in mutate.Source(path, text).faults()]


def compare(sample, got, want):
    if got == list(want):
        return 0
    print(f"{sample}\n  missing: {[w for w in want if w not in got]}\n  not wanted: {[g for g in got if g not in want]}\n  all: {got}")
    return 1


# A program, and what it writes without a fault and with each that stands in front of main.
PROGRAM = """#include <stdio.h>
enum { MOST = 20 };
static const int t[] = { 3, 5 };
static int small(int a)
{
    if (a < MOST)
        return 1;
    return 2;
}
static int sum(void)
{
    int n = 0;
    for (int i = 0; i < 2; i++)
        n += t[i];
    return n;
}
static int order(int a, int b)
{
    b = a;
    a = 9;
    return 10 * b + a;
}
int main(void)
{
    printf("%d %d %d %d %d", small(19), small(20), small(21), sum(), order(2, 1));
}
"""
WRITES = [
    ("no fault", "1 2 2 8 29"),
    ("constant: MOST = 21", "1 1 2 8 29"),
    ("constant: MOST = 40", "1 1 1 8 29"),
    ("table: t: { 4 , 5 }", "1 2 2 9 29"),
    ("table: t: { 3 , 6 }", "1 2 2 9 29"),
    ("negated: ! ( a < MOST )", "2 1 1 8 29"),
    ("operator: a <= MOST", "1 1 2 8 29"),
    ("number: 2", "2 2 2 8 29"),
    ("number: 3", "1 3 3 8 29"),
    ("number: 1", "1 2 2 9 29"),
    ("operator: i + 1 < 2", "1 2 2 3 29"),
    ("removed:", "1 2 2 0 29"),
    ("operator: n -= t [ i ]", "1 2 2 -8 29"),
    ("removed:", "1 2 2 8 19"),
    ("swapped: a = 9 ; b = a", "1 2 2 8 99"),
    ("removed:", "1 2 2 8 22"),
    ("number: a = 10", "1 2 2 8 30"),
    ("number: 11 * b + a", "1 2 2 8 31"),
    ("operator: 10 / b + a", "1 2 2 8 14"),
    ("operator: 10 * b - a", "1 2 2 8 11"),
]


def switched_on():
    """Builds PROGRAM with its faults; 0 if each of them, switched on, does what its row says."""
    source = mutate.Source("src/a/a.c", PROGRAM)
    # One more in i < 2 reads past the end.
    planted = [f for _, _, f in source.faults() if f.function != "main" and f.after != "i < 3"]
    failed = compare("PROGRAM", [f"{f.operator}: {f.after}".strip() for f in planted], [name for name, _ in WRITES[1:]])
    text, _ = source.written({fault.key: n for n, fault in enumerate(planted, 1)})
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        (at / "tinkc_fault.h").write_text(mutate.FAULT_H)
        (at / "a.c").write_text(text)
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-w", "-DTINKC_FAULTS=64", "-o", at / "a", at / "a.c"], check=True)
        for number, (name, want) in enumerate(WRITES):
            out = subprocess.run([at / "a"], env={"TINKC_MUTANT": str(number)}, stdout=subprocess.PIPE, text=True).stdout
            failed |= compare(f"PROGRAM with {name}", [out], [want])
        reached = at / "map"
        reached.write_bytes(bytes(64))
        subprocess.run([at / "a"], env={"TINKC_MUTANT_MAP": str(reached)}, stdout=subprocess.DEVNULL)
        failed |= compare("faults reached", [n for n, hit in enumerate(reached.read_bytes()) if hit], range(1, len(WRITES)))
    return failed


def keys_stay():
    """0 if the key of a fault stays as it is when lines before it and other functions change."""
    one = "int f(int a) { return a + 1; }"
    keys = [{f.key for _, _, f in mutate.Source("src/a/a.c", text).faults() if f.function == "f"}
            for text in (one, "\nint g(int a) { return a + 1; }\n" + one)]
    return compare("keys", sorted(keys[0]), sorted(keys[1]))


def main():
    failed = sum(compare(text, faults("src/a/a.c", f"int f(void) {{ {text} }}"), want) for text, *want in STATEMENTS)
    failed += sum(compare(text, faults(path, text), want) for path, text, *want in FILES)
    failed += switched_on() + keys_stay()
    print(f"{len(STATEMENTS) + len(FILES)} samples, {failed} with other faults than they should have")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
