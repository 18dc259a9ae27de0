"""Reads C sources, finds the places where small faults fit, and writes the source with all of them.

A fault is an alternative that runs only while TINKC_FAULT(number) holds, so one build carries every
fault and trying one costs no compilation. What is planted, by operator:

    negated   the condition of an if or a while
    operator  < <=  > >=  == !=  && ||  + -  * /  += -=  << >>  | & swapped for its neighbour; i < n in the head
              of a for becomes i + 1 < n, which leaves out the last
    number    a decimal constant, one more; a fraction, doubled
    truth     true and false
    removed   an assignment or a call
    constant  an enumerator with a value, or #define NAME NUMBER: one more, and doubled; of the command's
              waits, which no scripted clock measures, doubled alone
    table     in static data: numbers, numbers in strings ("512"), true and false, enumerators of the same
              file, flags of wire messages (MUST and NULLABLE become 0)

and faults of meaning, as a careless engineer makes them:

    swapped   two statements that stand behind each other, and two calls joined by && or ||. Only where the order may matter: both
              use the same thing (an error argument does not count), and one of them sets it or hands it to a call
    unlocked  pthread_mutex_lock(x) and every unlock of x in the function. Not where the function waits for a condition under
              that lock, or takes or releases it alone. Only a build with ThreadSanitizer shows most of these:
              tools/mutants tries them with --tsan, and leaves them out otherwise
    scaled    the wrong unit: 1000 and 1000000 in a product or a quotient become 1, other round thousands a thousandth; a
              constant whose name says a time or a size (_MS, _NS, _S, SECONDS, BYTES, TIMEOUT) a thousandth if it is a round
              thousand, else a thousand times as much; of the command's waits only limits
    neighbour a member of a struct in place of the one declared beside it with the same type (`begin, end`)
    undo      what an error path takes back: if (!ok) or if (tkc_failed(err)) with a body that only does so, and does not leave, is
              skipped; in one that leaves, the call that removes or cuts a file

What is not planted, because no test of behaviour can see it:

    - what a log line says, and whether it is written (an if with nothing else in it): only its level and the secrets
      in it are promised
    - releases (free, close, lib.x_free, unlink of a temporary file), what they are given, and whether (`if (fd >= 0) close(fd);`): the
      leak checker of `make asan` owns those
    - sizes in calls that allocate or copy bytes, the count of one descriptor that is polled, and loops that run one past
      the end: too much room shows nowhere, too little and one too far are what `make asan` is for
    - (type){ 0 }: as with { 0 }, any first member may be the one that is not zero
    - what happens when memory runs out (the flag no_memory; what stands behind `if (!p)` of a p that an allocation made; which
      of several allocations failed): tests/torture lets allocations fail
    - a lock alone, thread attributes, asserts: ThreadSanitizer and the debug builds own those
    - sizes that only speed depends on: first capacities, buffer, block and chunk sizes (PERF below), and how far a list
      grows (`cap ? 2 * cap : 64`) and a moment earlier or later (if (n + 1 > cap) before it; one too late is for `make asan`)
    - how long a loop sleeps or waits before it looks again, the number of threads that share work, what is large enough
      for another thread, and how long a program waits for its own threads at its end
    - limits in real time that are written as a number (tkc_deadline_ns(50)), and whether a limit of the command's clock
      (cli_now_ms() - begun > 1000) is over in its last millisecond or in the next one; advice to the system (posix_fadvise, madvise)
    - sizeof a * sizeof *a for the number of elements: reading past the end is what `make asan` is for
    - hexadecimal masks, modes of files, characters, and string texts: tests of formats hold whole outputs against these
    - fractions below 1e-4: guards against division by zero
    - < for <= and > for >= where both sides being equal gives the same: the smaller, the larger, the distance
      of two (`a < b ? a : b`, `if (a > most) most = a;`, `a > b ? a - b : 0`); for the same reason one more
      in the condition of a smaller or larger one of two (`n < 60 ? n : 60`), where the last 60 alone is changed
    - _exit(127) of a child behind its call of exec: it runs only where a program cannot be started
    - descriptors compared with 0: 0 itself is never handed out while standard input is open
    - getline() > 0 for >= 0: it never returns 0
    - `n < 0 && errno == EINTR`: a call that returns 0 leaves errno as it was, and nothing interrupts the calls before it
    - the size given to a call that writes text into a buffer (snprintf, readlink, gethostname): as with copies
    - in functions that release (x_free, free_x): loops that end one early, which is a leak; there and in x_close pointers
      and structs that are cleared for the last time
    - the size that getline or open_memstream sets before anybody reads it
    - < for <= behind a != of the same two (`a != b ? (a < b ? 1 : -1) : 0`)
    - | beside O_CLOEXEC or SOCK_CLOEXEC: the programs that are tested start no others
    - a failpoint that is only passed: the library is built without them
    - a wait whose result nobody looks at ((void)poll(...)): without it a loop looks again sooner
    - > for >= in the last comparison of an order ((a > b) - (a < b)): what is the same may come in any order
    - 0 for the -1 of an order (a < b ? 1 : -1): a merge sort, as qsort is one, takes the first of two for both

-1 stands for "none" nearly everywhere, so it becomes 0 and not -2.
"""
import collections, hashlib, random, re

TOKEN = re.compile(r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<pre>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<op>->|\+\+|--|<<=|>>=|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|<<|>>|\.\.\.|.)""",
                   re.X | re.S | re.M)
Token = collections.namedtuple("Token", "kind text begin end")
Site = collections.namedtuple("Site", "begin end kind changes function line detail")
Fault = collections.namedtuple("Fault", "path function line operator before after key")

# A wait of 0 or 1 ms for what is complete by then; flags of a reader of JSON.
NO_MATTER = re.compile(r"tinkc_future_(?!wait)\w+$|tinkc_queue_run$|json_load\w*$")
# A limit in real time, given as a number: only a test that measures time could tell 50 ms from 51.
REAL_TIME = re.compile(r"tkc_deadline_ns$")
GRACE = re.compile(r"tinkc_(client_close|server_stop)$")  # likewise, of 100 ms and more
# A moment of the command's clock, which no test sets, compared with a limit.
CLOCK = re.compile(r"(?:^|[(|&] )cli_now_[mu]s \( \)(?: - [\w >*.-]+)?$")
# Hints to the system about what is read next, and pages given back to it.
ADVICE = re.compile(r"^(posix_fadvise|madvise|tkc_dl_give_back|cli_give_back_pages)$")
ROOM_AT = {"snprintf": 1, "vsnprintf": 1, "strftime": 1, "fgets": 1, "readlink": 2, "gethostname": 1, "getnameinfo": 3}  # which argument is the size of a buffer
FREES = re.compile(r"^(\w+_)?free(_\w+)?$")
ENDS = re.compile(r"^(\w+_)?(free|close)(_\w+)?$")
CLEARED = re.compile(r"[\w >*.\[\]-]+ = (NULL|\( \w+ \) \{ 0 \})$")
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
         "+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "<<": ">>", ">>": "<<", "|": "&"}
# Calls that are left alone with their arguments, and calls whose loss alone no behaviour shows.
UNSEEN = re.compile(r"^(?!tke_)(assert|perror|va_start|va_end|tkc_release\w*|log_\w+|(?:\w+_)?(?:log|debug|warn|trace|note|logf)(?:_\w+)?|\w*_log\w*|nanosleep|usleep|TKC_\w+)$")
KEPT = re.compile(r"^(free|close|.*_(free|cleanup|destroy|unlock|lock|end|init|release|close|unref|decref|drop|discard)|memset|fflush|"
                  r"pthread_\w+|unlink|madvise|posix_fadvise|clearerr|closedir|fclose|close_range)$")
RELEASE = re.compile(r"^(free|freeaddrinfo|close|fclose|closedir|\w+_(free|decref|unref)|ZSTD_free\w+)$")
PERF = re.compile(r"CAPACITY|INITIAL|BUFFER|_BUF$|CHUNK|BLOCK|GRAIN|STACK|PREFETCH|ALIGN|BATCH_BYTES|SLAB|PAGE_BYTES|READ_SIZE|READ_AT_ONCE|^READ_BYTES$|"
                  r"COPY_BYTES|PIECE|_THREADS$|^PAD$|^LOOK_MS$|EVENTS_AT_ONCE|"
                  r"^OFFLOAD_BYTES$|^MANY_BYTES$|^GATHER_MS$|^N_HELPERS$|^(END|EXIT)_PATIENCE_MS$")
GROWTH = re.compile(r"(\w+) \? (?:2 \* [\w >*-]*\b\1|[\w >*-]*\b\1 \* 2) : \d+$")
ALLOCATES = re.compile(r"^(malloc|calloc|realloc|tkc_(z?alloc|alloc_\w+|resize|grow|arena_(alloc|zalloc|array)))$")
# p = calloc(...), and calls that return NULL for no other reason.
MADE = re.compile(r"(?:^|[ (;,*])([\w>.-]+(?: (?:->|\.) \w+)*) = (?:\( [\w *]+\) )?"
                  r"(?:malloc|calloc|realloc|strdup|strndup|open_memstream|cli_printf|json_array|json_object|"
                  r"tkc_(?:z?alloc|alloc_\w+|resize|grow|buf_room|copy_str|path_join|arena_(?:alloc|zalloc|array|cstr|str|printf))|"
                  r"tke_(?:(?:session|run|sampler|checkpoint)_add|job_new|txn_new|copy)|writing_new) \(")
COPIES = ("memcpy", "memmove", "memset")
PERF_CALL = re.compile(r"^(\w*_(reserve|grow|room)|tkc_arena_init|posix_fadvise|madvise|tkc_cond_wait_until)$")
TYPES = ("char", "int", "void", "float", "double", "const", "uint8_t", "uint32_t", "int64_t", "size_t", "uint64_t", "int32_t")
NEVER = ("assert", "va_arg", "offsetof", "TKC_OWNER", "__asm__", "_Static_assert")
FLAGS = {"MUST": "0", "NULLABLE": "0", "TKC_MUST": "0", "TKC_NULLABLE": "0"}
SITE_CAP, MEANING_CAP, TABLE_CAP = 4, 2, 40  # faults of one statement, of these at most so many of meaning, of one table
MEANING = ("scaled", "neighbour", "swapped")
LOCK, UNLOCK = "pthread_mutex_lock", "pthread_mutex_unlock"
UNIT = re.compile(r"(_MS|_NS|_US|_S|SECONDS|MINUTES|TIMEOUT|BYTES|_KB|_MB|_MIB)$")
FAILURE = re.compile(r"(?:! \w*(?:ok|done|sound|good|fine|written|complete)|tkc_failed \( [\w &>.-]+ \)|[\w >.-]*(?:err|error|failed|rc|code)(?: != 0| < 0)?)$")
LEAVES = ("return", "goto", "continue", "break", "exit", "_exit")
UNNAMED = re.compile(r"reserved|cap(_|$)|\w+_cap$|room$")  # no neighbours: spare members, and capacities, which `make asan` watches
TAKES_BACK = re.compile(r"^(unlink|unlinkat|rmdir|remove|ftruncate|truncate|\w*_(remove|remove_\w+|truncate|rollback|undo|forget|withdraw))$")
# Calls that set one of several things, in any order; calls that only ask.
SETTER = re.compile(r"easy_setopt|multi_setopt|sigaddset|setsockopt|tke_take$|json_object_set_new$|pthread_attr_\w+|posix_spawn\w+")
ASKS = re.compile(r"(^|_)(is|has|can|may|needs|equal|starts|ends|failed|flag|find|get|count|len|text|int|number)(_|$)|^str|^mem(cmp|chr|mem)|^is[a-z]+$|printf$")
# Names that two statements may share without depending on each other.
SHARED_BY_ALL = re.compile(r"^(\w*err|error|NULL|true|false|void|sizeof|const|char|int|struct|size_t|\w+_t)$")


def tokens_of(text):
    out = [Token(m.lastgroup, m.group(), m.start(), m.end()) for m in TOKEN.finditer(text)]
    return [t for t in out if t.kind not in ("space", "pre")]


def closing(tokens, at):
    """Index of the bracket that closes the one at `at`."""
    pairs, depth = {"(": ")", "{": "}", "[": "]"}, 0
    for i in range(at, len(tokens)):
        if tokens[i].text in pairs:
            depth += 1
        elif tokens[i].text in pairs.values():
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("bracket is not closed")


def changed_number(text):
    """The constant one off, or None: masks, hex and tiny fractions are left alone."""
    if re.fullmatch(r"0\d+", text):
        return None  # octal: the mode of a file
    if re.fullmatch(r"\d+[uUlL]*", text):
        return re.sub(r"^\d+", lambda m: str(int(m.group()) + 1), text)
    m = re.fullmatch(r"((?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)([fF]?)", text)
    if not m or 0 < float(m.group(1)) < 1e-4:
        return None
    return repr(float(m.group(1)) * 2 or 1.0) + m.group(2)


def unary(tokens, i, first):
    if i == first:
        return True
    before = tokens[i - 1]
    return before.kind == "op" and before.text not in (")", "]") or before.text in ("return", "sizeof", "case")


def is_type_star(tokens, i):
    return tokens[i + 1].text in (")", ",", "*", "const") or tokens[i - 1].text in TYPES


def operand(tokens, i, step, first, last):
    """The simple operand that ends (step -1) or begins (step 1) at i: names, members, indexes, numbers, calls."""
    k, depth = i, 0
    while first <= k < last:
        text = tokens[k].text
        depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(text, 0) * -step
        if depth < 0 or depth == 0 and text not in (")", "]", "(", "[", "->", ".") and tokens[k].kind == "op":
            break
        k += step
    return tokens[k + 1:i + 1] if step < 0 else tokens[i:k]


def text_of(tokens):
    return " ".join(t.text for t in tokens)


def same_when_equal(tokens, i, first, last):
    """Does L < R against L <= R make no difference, because L == R gives the same either way?"""
    left, right = text_of(operand(tokens, i - 1, -1, first, last)), text_of(operand(tokens, i + 1, 1, first, last))
    end = i + 1 + len(operand(tokens, i + 1, 1, first, last))
    if not left or not right:
        return False
    if re.search(re.escape(f"{left} != {right}") + r" (\?|&&) ", text_of(tokens[first:i]) + " "):
        return True
    same = re.compile(r"(?<!\S)" + re.escape(left) + r"(?!\S)")
    plain = lambda text: same.sub(lambda m: right, re.sub(r"\( (?:u?int\d+_t|size_t|int|float|double|long) \) ", "", text))
    if "?" in (x.text for x in tokens[i:last]):  # a - b < c ? a - b : c
        mark = next(k for k in range(i, last) if tokens[k].text == "?")
        colon = next((k for k in range(mark, last) if tokens[k].text == ":"), mark)
        yes, rest = text_of(tokens[mark + 1:colon]), text_of(tokens[colon + 1:last])
        before, after = text_of(tokens[first:i]), text_of(tokens[i + 1:mark])
        if re.search(r"(^|[=(] )" + re.escape(yes) + "$", before) and re.match(re.escape(after) + r"(?: [),;:]|$)", rest):
            return True
    if end < last and tokens[end].text == "?":
        colon = next((k for k in range(end, last) if tokens[k].text == ":"), None)
        if colon:
            yes = plain(text_of(tokens[end + 1:colon]))
            rest = plain(text_of(tokens[colon + 1:last]))
            yes = "0" if yes in (f"{right} - {right}", f"( {right} - {right} )") else yes
            return re.match(re.escape(yes) + r"(?: [),;:]|$)", rest) is not None
    if end == last and tokens[last].text == ")":  # if (a > most) most = a;
        k = last + 1 + (tokens[last + 1].text == "{")
        stop = next((m for m in range(k, min(k + 30, len(tokens))) if tokens[m].text == ";"), k)
        sides = plain(text_of(tokens[k:stop])).split(" = ")
        return len(sides) == 2 and sides[0] == sides[1]
    return False


def ends_order(tokens, i, last):
    """Is this the > or < of `( a > b ) - ( a < b )`, with which an order ends?"""
    for k in (i, i - 6):  # of operands that are one token each
        if k > 1 and re.match(r"\( (\S+) > (\S+) \) - \( \1 < \2 \)$", text_of(tokens[k - 2:last])):
            return True
    return False


def argument(tokens, at, which):
    """The places of an argument of the call whose bracket is at `at`; -1 = the last."""
    end, k, begins = closing(tokens, at), at + 1, [at + 1]
    while k < end:
        if tokens[k].text == ",":
            begins.append(k + 1)
        k = closing(tokens, k) + 1 if tokens[k].text in "([{" else k + 1
    ends = [b - 1 for b in begins[1:]] + [end]
    return range(begins[which], ends[which]) if which < len(begins) else range(0)


def set_by_reader(tokens, at, end):
    """Is the variable whose = is at `at` next handed to getline or open_memstream, which set it?"""
    name = tokens[at - 1].text
    use = next((k for k in range(at + 1, end) if tokens[k].text == name), None)
    return use is not None and tokens[use - 1].text == "&" and caller(tokens, use, at) in ("getline", "open_memstream")


def called_before(tokens, at):
    """The name of the call whose last bracket is at `at`."""
    depth = 0
    for k in range(at, 0, -1):
        depth += {")": 1, "(": -1}.get(tokens[k].text, 0)
        if depth == 0:
            return tokens[k - 1].text
    return ""


def bound_of_smaller(tokens, i):
    """Is tokens[i] the 60 of the condition in `n < 60 ? n : 60` or `n < 60 ? 60 : n`? With n < 61 there, 60 itself
    still gives 60."""
    if tokens[i - 1].text != "<" or tokens[i + 1].text != "?" or not tokens[i].text.isdigit():
        return False
    return any(flat(tokens, i + 2, i + 4 + n) in (flat(tokens, i - 1 - n, i - 1) + " : " + tokens[i].text,
                                                  tokens[i].text + " : " + flat(tokens, i - 1 - n, i - 1))
               for n in range(1, 16) if i - 1 - n >= 0 and i + 4 + n <= len(tokens))


def caller(tokens, i, first):
    """The name of the call that tokens[i] is an argument of; "" = none."""
    depth = 0
    for k in range(i - 1, first, -1):
        depth += {")": 1, "(": -1}.get(tokens[k].text, 0)
        if depth < 0:
            return tokens[k - 1].text
    return ""


def scaled(text):
    """A number in another unit, or None."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1000 or int(text) % 1000:
        return None
    return str(int(text) // 1000)


def operand_calls(tokens, first, last):
    """The && and || between two calls: (where the first begins, the operator, where the second ends)."""
    for i in range(first + 1, last):
        if tokens[i].text not in ("&&", "||") or tokens[i - 1].text != ")":
            continue
        left, right = operand(tokens, i - 1, -1, first, last), operand(tokens, i + 1 + (tokens[i + 1].text == "!"), 1, first, last)
        begin, end = i - len(left), i + 1 + (tokens[i + 1].text == "!") + len(right)
        begin -= begin > first and tokens[begin - 1].text == "!"
        calls = [part for part in (left, right) if len(part) > 2 and part[0].kind == "name" and part[1].text == "(" and part[-1].text == ")"]
        outside = begin == first or tokens[begin - 1].text in ("(", "&&", "||", "=", "return")
        if len(calls) == 2 and outside and (end >= last or tokens[end].text in (")", "&&", "||", "?", ",")):
            yield begin, i, end


def names_in(tokens):
    """What a statement uses, without the names of functions and members."""
    return {t.text for i, t in enumerate(tokens) if t.kind == "name" and not SHARED_BY_ALL.match(t.text) and
            not (i and tokens[i - 1].text in ("->", ".")) and not (i + 1 < len(tokens) and tokens[i + 1].text == "(")}


def handed_over(tokens):
    """The names inside the brackets of a statement's calls."""
    depth, inside = 0, []
    for i, t in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(t.text, 0) if depth or i and tokens[i - 1].kind == "name" else 0
        inside += [t] if depth else []
    return names_in(inside)


def values_of(tokens):
    """The text behind the = of a statement."""
    at = next((i for i, t in enumerate(tokens) if t.text in ("=", "+=", "-=", "|=", "&=")), -1)
    return flat(tokens, at + 1, len(tokens))


def whole_arguments(tokens):
    """The names that a statement's calls are given alone, by value or by address, not a member of them."""
    return {t.text for i, t in enumerate(tokens) if t.kind == "name" and i + 1 < len(tokens) and i and
            tokens[i + 1].text in (",", ")") and tokens[i - 1].text in ("(", ",", "&", "*")}


def assigned(tokens):
    """The text in front of the = (or ++) of a statement; "" = it assigns nothing."""
    for i, t in enumerate(tokens):
        if t.text in ("=", "+=", "-=", "|=", "&=", "++", "--"):
            return flat(tokens, 0, i)
        if t.text == "(" and i:
            return ""
    return ""


def depend(a, b):
    """Could it matter which of two statements comes first?"""
    shared, calls = names_in(a) & names_in(b), [any(t.text == "(" and i and x[i - 1].kind == "name" for i, t in enumerate(x)) for x in (a, b)]
    if not shared or flat(a, 0, len(a)) == flat(b, 0, len(b)):
        return False
    sets = [assigned(a), assigned(b)]
    if all(sets):  # two values: one must be made of the other, or of all that the other is part of
        return sets[0] != sets[1] and any(
            re.search(r"(?<![\w>.] )(?<!\w)" + re.escape(s) + r"(?![\w(])", values_of(other)) or s.split(" ")[0] in whole_arguments(other)
            for s, other in ((sets[0], b), (sets[1], a)))
    called = [next((t.text for i, t in enumerate(x) if i + 1 < len(x) and t.kind == "name" and x[i + 1].text == "("), "") for x in (a, b)]
    if any(SETTER.match(c) for c in called) and called[0] == called[1] or any(ASKS.search(c) or c.endswith(("_lock", "_unlock")) for c in called):
        return False
    if all(calls):
        return bool(shared & (handed_over(a) | handed_over(b) | {s.split(" ")[0] for s in sets}))
    if not any(calls):
        return any(s and s in flat(other, 0, len(other)) for s, other in ((sets[0], b), (sets[1], a))) and sets[0] != sets[1]
    plain, call = (a, b) if calls[1] else (b, a)
    base = assigned(plain).split(" ")[0]
    return base in names_in(call) and not SHARED_BY_ALL.match(base)


def changes_of(tokens, first, last, loop, fields=()):
    """Alternatives of tokens[first..last): (operator, place, new text) by replacing one token."""
    sizes = 0  # before it stand arguments of a call that allocates
    copied = range(0)  # the size in a call that copies
    room = range(0)  # the size in a call that writes text
    for i in range(first, last):
        t, new, what = tokens[i], None, None
        if t.text in COPIES and tokens[i + 1].text == "(":
            copied = argument(tokens, i + 1, -1)
        if t.text in ROOM_AT and tokens[i + 1].text == "(":
            room = argument(tokens, i + 1, ROOM_AT[t.text])
        if i in copied and (t.kind == "number" or t.text == "-") or i in room:
            continue
        if t.text == "1" and flat(tokens, max(i - 5, 0), i - 2) == "poll ( &" and tokens[i - 1].text == ",":
            continue
        if ALLOCATES.match(t.text) and tokens[i + 1].text == "(":
            sizes = closing(tokens, i + 1)
        if i < sizes or flat(tokens, max(i - 2, 0), i + 2) == ") { 0 }":
            continue
        if t.kind == "op" and t.text in SWAPS and not (t.text in "+-*" and unary(tokens, i, first)):
            if t.text in "*/" and not (tokens[i - 1].kind in ("name", "number") or tokens[i - 1].text == ")"):
                continue
            if t.text == "*" and is_type_star(tokens, i):
                continue
            if t.text == "/" and re.search(r"sizeof (\S+) / sizeof \* \1$", flat(tokens, i - 2, i + 4)):
                continue
            if t.text == "|" and any(x.text in ("O_CLOEXEC", "SOCK_CLOEXEC") for x in (tokens[i - 1], tokens[i + 1])):
                continue
            if t.text in ("<", "<=", ">", ">=") and (same_when_equal(tokens, i, first, last) or
                                                    re.search(r"fd$", tokens[i - 1].text)):
                continue
            if t.text in "<>" and ends_order(tokens, i, last):
                continue
            if t.text == "<" and flat(tokens, i + 1, min(i + 6, len(tokens))) == "0 && errno == EINTR":
                continue
            if t.text in ("<", "<=", ">", ">=") and (CLOCK.search(flat(tokens, first, i)) or
                                                    CLOCK.search(flat(tokens, i + 1, min(i + 4, len(tokens))))):
                continue
            if t.text == ">" and tokens[i + 1].text == "0" and tokens[i - 1].text == ")" and called_before(tokens, i - 1) == "getline":
                continue
            new, what = "+ 1 <" if loop and t.text == "<" else SWAPS[t.text], "operator"
        elif t.kind == "number":
            if t.text == "0" and re.search(r"fd$", tokens[i - 2].text) and tokens[i - 1].text in ("<", ">="):
                continue
            if t.text == "0" and tokens[i - 1].text == "<" and flat(tokens, i + 1, min(i + 5, len(tokens))) == "&& errno == EINTR":
                continue
            if t.text == "0" and NO_MATTER.match(caller(tokens, i, first)):
                continue
            if REAL_TIME.match(caller(tokens, i, first)) or bound_of_smaller(tokens, i):
                continue
            if len(t.text) > 2 and GRACE.match(caller(tokens, i, first)):
                continue
            if tokens[i - 1].text in ("<", "<=", ">", ">=") and CLOCK.search(flat(tokens, first, i - 1)):
                continue
            none = t.text == "1" and tokens[i - 1].text == "-" and unary(tokens, i - 1, first)
            if none and flat(tokens, max(i - 4, 0), i - 1) == "? 1 :":
                continue
            new, what = "0" if none else changed_number(t.text), "number"
        elif t.text in ("true", "false"):
            new, what = {"true": "false", "false": "true"}[t.text], "truth"
        elif t.text in fields and tokens[i - 1].text in ("->", ".") and tokens[i + 1].text != "(" and \
                not (tokens[i - 1].text == "." and tokens[i - 2].text in ("{", ",")):
            new, what = fields[t.text], "neighbour"
        if new:
            yield what, i, new
        if t.kind == "number" and what == "number" and scaled(t.text):
            yield "scaled", i, scaled(t.text)


def fields_of(*texts):
    """Member -> the one declared beside it with the same type, of the structs in these texts. A name that has several
    neighbours is left out."""
    near = {}
    for text in texts:
        plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
        for body in re.findall(r"struct(?:\s+\w+)?\s*\{([^{}]*)\}", plain):
            before = ("", "")
            for line in body.split(";"):
                m = re.fullmatch(r"\s*((?:const |struct |unsigned |_Atomic )*\w+)\s+([\w\s,]+)", line)
                names = [n.strip() for n in m.group(2).split(",")] if m else []
                if not names or any(not re.fullmatch(r"[A-Za-z_]\w*", n) for n in names):
                    before = ("", "")
                    continue
                kind = " ".join(m.group(1).split())
                row = ([before[1]] if before[0] == kind and before[1] else []) + names
                for a, b in zip(row, row[1:]):
                    near.setdefault(a, set()).add(b)
                    near.setdefault(b, set()).add(a)
                before = (kind, names[-1])
    # Of a name between two, one of them; of a name with more, none: it belongs to several structs.
    out = {}
    for name, others in near.items():
        pick = sorted(o for o in others if not UNNAMED.match(o))
        if len(others) <= 2 and not UNNAMED.match(name):
            if pick:
                out[name] = pick[-1]
    return out


def picked(found, most, seed):
    """At most so many of a list, in its order."""
    return found if len(found) <= most else sorted(random.Random(seed).sample(found, most), key=found.index)


def flat(tokens, first, last, at=None, new=None):
    return " ".join(new if i == at else tokens[i].text for i in range(first, min(last, len(tokens))))


class Source:
    """One file: the places where faults fit, and its text with them."""

    def __init__(self, path, text, fields=None):
        self.path, self.text = path, text
        self.tokens = tokens_of(text)
        self.sites, self.bodies, self.enums, self.plains = [], [], {}, []
        self.fields = {**(fields or {}), **fields_of(text)}
        self.find_enums()
        self.find()
        self.find_swaps()
        for function, begin, end in self.bodies:
            self.find_locks(function, begin, end)

    # ---- walking over the file ----

    def find_enums(self):
        """Enumerator -> another one of the same enum, for the rows of tables."""
        t = self.tokens
        for i in range(len(t) - 1):
            if t[i].text == "enum" and "{" in (t[i + 1].text, t[i + 2].text):
                begin = i + 1 if t[i + 1].text == "{" else i + 2
                end = closing(t, begin)
                names = [t[k].text for k in range(begin + 1, end)
                         if t[k].kind == "name" and t[k - 1].text in "{," and t[k + 1].text in "=,}"]
                for k, name in enumerate(names):
                    if len(names) > 1 and not re.match(r"N_|.*(COUNT|_N)$", name):
                        self.enums[name] = names[k - 1]

    def find(self):
        t, i, begin = self.tokens, 0, 0
        while i < len(t):
            text = t[i].text
            if text == "=" and i > begin:
                stop = self.semicolon(i, len(t))
                self.table(begin, i, stop, None)
                i = begin = stop + 1
                continue
            if text == "{":
                end = closing(t, i)
                if i and t[i - 1].text == ")":
                    name = self.function_name(i)
                    self.bodies.append((name, i, end))
                    self.statements(i + 1, end, name)
                    begin = end + 1
                elif "enum" in (t[i - 1].text, t[i - 2].text if i > 1 else ""):
                    self.enumerators(i, end)
                i = end
            elif text == ";":
                begin = i + 1
            i += 1
        for m in re.finditer(r"^#define[ \t]+([A-Z]\w*)[ \t]+(\d+)[ \t]*(?:/\*.*\*/)?$", self.text, re.M):
            self.constant(m.end(), m.group(1), int(m.group(2)))

    # ---- faults in several places ----

    def spread(self, what, before, after, parts, function):
        """A fault of several statements: parts are (first token, last token, what stands there instead)."""
        t, spans = self.tokens, []
        for first, stop, new in parts:
            spans.append((t[first].begin, t[stop].end, new))
            if not any((x.begin, x.end, x.function) == (*spans[-1][:2], function) for x in self.sites):
                self.sites.append(Site(*spans[-1][:2], "statement", [], function, self.line_of(first), None))
        at = next(k for k, x in enumerate(self.sites) if (x.begin, x.end, x.function) == (*spans[0][:2], function))
        self.sites[at] = self.sites[at]._replace(changes=[*self.sites[at].changes, (what, before, after, tuple(spans))])

    def find_swaps(self):
        t = self.tokens
        for (i, stop, function), (k, end, _) in zip(self.plains, self.plains[1:]):
            a, b = t[i:stop], t[k:end]
            alone = [UNSEEN.match(x[0].text) or ADVICE.match(x[0].text) or RELEASE.match(x[0].text) or x[0].text in NEVER or
                     x[0].text.startswith(("pthread_", "TKE_FAILPOINT")) or x[0].text == "(" or FREES.match(x[0].text) or
                     x[0].text.endswith(("_init", "_unref", "_decref")) for x in (a, b)]
            if k != stop + 1 or t[i - 1].text not in (";", "{", "}", ":") or any(alone) or not depend(a, b):
                continue
            one, other = flat(t, i, stop), flat(t, k, end)
            self.spread("swapped", f"{one} ; {other}", f"{other} ; {one}", [(i, stop, other), (k, end, one)], function)

    def find_locks(self, function, begin, end):
        t, places = self.tokens, collections.defaultdict(list)
        for i in range(begin, end):
            if t[i].text in (LOCK, UNLOCK) and t[i + 1].text == "(" and t[closing(t, i + 1) + 1].text == ";":
                places[flat(t, i + 2, closing(t, i + 1))].append(i)
        for what, at in places.items():
            kinds = [t[i].text for i in at]
            waits = re.search(r"(?:pthread|tkc)_cond_\w*wait\w* \([^;]*, " + re.escape(what) + r"(?: ,| \))", flat(t, begin, end))
            if waits or kinds[0] != LOCK or kinds.count(LOCK) != 1 or UNLOCK not in kinds:
                continue
            parts = [(i, closing(t, i + 1) + 1, "") for i in at]
            self.spread("unlocked", f"{LOCK} ( {what} )", "", parts, function)

    def enumerators(self, begin, end):
        """NAME = NUMBER, where the number is a figure and not a place in a list."""
        t, stop = self.tokens, self.semicolon(end + 1, len(self.tokens))
        if stop >= len(t):
            return
        for i in range(begin, end - 2):
            if t[i].kind == "name" and t[i + 1].text == "=" and t[i + 2].text.isdigit():
                k = i + 2
                while k < end and t[k].text != ",":
                    k += 1
                value = flat(t, i + 2, k)
                if re.fullmatch(r"[\d *]+", value) and eval(value) > 1:
                    self.constant(t[stop].end, t[i].text, eval(value))

    def constant(self, at, name, value):
        if PERF.search(name):
            return
        line = self.text.count("\n", 0, at) + 1
        others = (value * 2,) if name.endswith("_MS") and self.path.startswith("cli/") else (value + 1, value * 2)
        changes = [("constant", f"{name} = {value}", f"{name} = {new}", None) for new in others]
        limit = not self.path.startswith("cli/") or re.search("TIMEOUT|LIMIT|MOST|DEADLINE|PATIENCE", name)
        if UNIT.search(name) and value >= 10 and limit:
            changes.append(("scaled", f"{name} = {value}", f"{name} = {value * 1000 if value % 1000 else value // 1000}", None))
        self.sites.append(Site(at, at, "constant", changes, name, line, (name, value)))

    def function_name(self, brace):
        depth, i = 0, brace - 1
        while i > 0:
            depth += {")": 1, "(": -1}.get(self.tokens[i].text, 0)
            if depth == 0:
                return self.tokens[i - 1].text
            i -= 1
        return "?"

    def semicolon(self, i, end):
        while i < end and self.tokens[i].text != ";":
            i = closing(self.tokens, i) if self.tokens[i].text in "([{" else i
            i += 1
        return i

    def line_of(self, at):
        return self.text.count("\n", 0, self.tokens[at].begin) + 1

    # ---- statements ----

    def statements(self, i, end, function):
        t = self.tokens
        while i < end:
            word = t[i].text
            if word in ("if", "while", "switch", "for") and t[i + 1].text == "(":
                close = closing(t, i + 1)
                if word == "if" and (self.only_logs(close + 1) or self.only_releases(i + 2, close)):
                    pass
                elif word == "if" and self.only_grows(close + 1):
                    self.site(i + 2, close, "growth", i + 2, close, function)
                elif word in ("if", "while"):
                    self.site(i + 2, close, "condition", i + 2, close, function)
                elif word == "for":
                    self.for_condition(i + 2, close, function)
                failed = word == "if" and "&&" not in flat(t, i + 2, close).split() and self.only_made(i + 2, close, "! ")
                i = close + 2 if word == "while" and t[close + 1].text == ";" else close + 1
                i = self.statement_end(i, end) if failed else i
            elif word in ("{", "}", ";", "else", "do"):
                i += 1
            elif word in ("case", "default") or (t[i].kind == "name" and t[i + 1].text == ":"):
                while t[i].text != ":":
                    i += 1
                i += 1
            elif t[i].kind == "name" and t[i + 1].text == "(" and t[closing(t, i + 1) + 1].text == "{":
                i = closing(t, i + 1) + 1  # a macro that is a loop
            else:
                i = self.plain(i, end, function)

    def only_logs(self, i):
        """Is the statement at i a call that writes a log line or gives advice, without an else?"""
        t = self.tokens
        i += 3 if flat(t, i, i + 3) == "( void )" else 0
        if not (UNSEEN.match(t[i].text) or ADVICE.match(t[i].text)) or t[i + 1].text != "(":
            return False
        end = closing(t, i + 1)
        return t[end + 1].text == ";" and t[end + 2].text != "else"

    def made_here(self, at):
        """What allocations have made in the function that holds this place, up to it."""
        begin = next(begin for _, begin, end in self.bodies if begin < at < end)
        return {m.group(1) for m in MADE.finditer(flat(self.tokens, begin, at))}

    def only_made(self, first, last, mark=""):
        """Does a condition ask only whether allocations (all of them with this mark) have failed?"""
        parts = re.split(r" (?:&&|\|\|) ", flat(self.tokens, first, last))
        made = self.made_here(first)
        return all(p.startswith(mark) and p.removeprefix("! ") in made for p in parts)

    def statement_end(self, i, end):
        """Where the block or the plain statement at i ends; i itself for others."""
        if self.tokens[i].text == "{":
            return closing(self.tokens, i) + 1
        plain = self.tokens[i].text not in ("if", "while", "switch", "for", "do")
        return self.semicolon(i, end) + 1 if plain else i

    def only_releases(self, first, close):
        """Is it if (x) free(x); or if (fd >= 0) close(fd); without an else?"""
        t, i = self.tokens, close + 1
        i += 3 if flat(t, i, i + 3) == "( void )" else 0
        if not RELEASE.match(t[i].text) or t[i + 1].text != "(":
            return False
        end = closing(t, i + 1)
        held = re.sub(r" >= 0$", "", flat(t, first, close))
        return t[end + 1].text == ";" and t[end + 2].text != "else" and flat(t, i + 2, end) == held

    def only_grows(self, i):
        """Does the statement at i begin with a list's next capacity?"""
        i += self.tokens[i].text == "{"
        return GROWTH.search(flat(self.tokens, i, self.semicolon(i, len(self.tokens)))) is not None

    def plain(self, i, end, function):
        t, stop = self.tokens, self.semicolon(i, end)
        if stop >= end:
            return end
        word = t[i].text
        if word == "return":
            if stop > i + 1:
                self.site(i, stop + 1, "return", i + 1, stop, function)
        elif word == "static":
            equals = next((k for k in range(i, stop) if t[k].text == "="), None)
            if equals:
                self.table(i, equals, stop, function)
        elif word in ("break", "continue", "goto", "typedef", "enum", "union"):
            pass
        elif self.is_expression(i):
            self.plains.append((i, stop, function))
            self.site(i, stop + 1, "statement", i, stop, function)
        else:
            self.declaration(i, stop, function)
        return stop + 1

    def is_expression(self, i):
        t = self.tokens
        if t[i].kind == "op":
            return t[i].text in ("*", "(", "++", "--")
        return t[i].kind == "name" and t[i].text not in TYPES and t[i + 1].text in ("(", "=", "->", ".", "[", "++", "--", "+=", "-=", "*=",
                                                        "/=", "|=", "&=", "^=", "<<=", ">>=", "%=")

    def declaration(self, i, stop, function):
        """The value that a declared variable starts with; of a list in braces each value by itself."""
        t, k = self.tokens, i
        while k < stop and t[k].text != "=":
            if t[k].text in ",(":
                return
            k += 1
        if k >= stop:
            return
        if t[k + 1].text == "{":
            return self.values(k + 1, stop, function)
        m = k + 1
        while m < stop:
            if t[m].text == ",":
                return
            m = closing(t, m) if t[m].text in "([{" else m
            m += 1
        if not (flat(t, k + 1, stop) == "0" and set_by_reader(t, k, self.body_end(k))):
            self.site(k + 1, stop, "value", k + 1, stop, function)

    def body_end(self, at):
        """Where the function that holds this place ends."""
        return next(end for _, begin, end in self.bodies if begin < at < end)

    def values(self, brace, stop, function):
        t, end = self.tokens, closing(self.tokens, brace)
        if end != stop - 1 or flat(t, brace, end + 1) == "{ 0 }":
            return
        first = i = brace + 1
        while i <= end:
            if t[i].text in ("{", "="):
                first = i + 1
            elif t[i].text in (",", "}"):
                if i > first and t[first].text not in (".", "["):
                    self.site(first, i, "value", first, i, function)
                first = i + 1
            elif t[i].text in ("(", "["):
                i = closing(t, i)
            i += 1

    def for_condition(self, first, last, function):
        t, stops, i = self.tokens, [], first
        while i < last:
            if t[i].text == ";":
                stops.append(i)
            i = closing(t, i) if t[i].text in "([{" else i
            i += 1
        if len(stops) == 2 and stops[1] > stops[0] + 1:
            self.site(stops[0] + 1, stops[1], "loop", stops[0] + 1, stops[1], function)

    def site(self, begin, end, kind, first, last, function):
        t = self.tokens
        if any(x.text in NEVER for x in t[first:last]):
            return
        # `(void) call(...)`, `call(...)`, `ok = ok && call(...)`: the first called name decides.
        skip = 3 if flat(t, first, first + 3) == "( void )" else 0
        called = t[first + skip].text if t[first + skip].kind == "name" else ""
        member = re.match(r"(?:\( void \) )?\w+(?: (?:\.|->) \w+)* (?:\.|->) (\w+) \($", flat(t, first, next(
            (i + 1 for i in range(first + skip, last) if t[i].text == "("), first)))
        if member and kind == "statement" and KEPT.match(member.group(1)):  # lib.connection_free(c)
            called = member.group(1)
        if (UNSEEN.match(called) or ADVICE.match(called)) and t[first + skip + 1].text == "(":
            return
        if kind == "statement" and (called == "TKE_FAILPOINT" or flat(t, first, first + 5) == "( void ) poll ("):
            return
        if flat(t, first, last) == "_exit ( 127 )":
            return
        if kind == "statement" and RELEASE.match(called) or any(x.text == '"out of memory"' for x in t[first:last]):
            return
        whole, found = flat(t, first, last), []
        if FREES.match(function) and kind == "loop" or ENDS.match(function) and kind == "statement" and CLEARED.match(whole):
            return
        if GROWTH.search(whole) or re.search(r"\bno_memory = (true|[^=]*\bno_memory)$", whole):
            return
        if not PERF_CALL.match(called):
            found = [(what, whole, flat(t, first, last, at, new), None)
                     for what, at, new in changes_of(t, first, last, kind == "loop", self.fields)]
            found += [("swapped", whole, " ".join((flat(t, first, b), flat(t, m + 1, e), t[m].text, flat(t, b, m), flat(t, e, last))).strip(), None)
                      for b, m, e in operand_calls(t, first, last) if depend(t[b:m], t[m + 1:e])]
        meant = [f for f in found if f[0] in MEANING]
        found = picked([f for f in found if f[0] not in MEANING], SITE_CAP, whole + function)
        if kind == "condition" and self.only_made(first, last):
            found = [f for f in found if f[0] != "operator"]
        if kind == "growth":
            found = [] if any(x.text in ("<", "<=", ">", ">=") for x in t[first:last]) else found
        if kind in ("condition", "growth"):
            meant = [f for f in meant if kind == "condition"]
            single = len(found) == 1 and found[0][0] == "operator" and re.search(r"==|!=", whole) and last - first < 6
            if not single:
                found.insert(0, ("negated", whole, f"! ( {whole} )", None))
        found += picked(meant, MEANING_CAP, whole + function)
        if kind == "condition" and self.only_takes_back(first, last):
            found.append(("undo", whole, "0", None))
        if kind == "statement" and not (called and (KEPT.match(called) or FREES.match(called))) and whole != "( void ) 0":
            if not re.match(r"\( void \) \w+( , \( void \) \w+)*$", whole):
                found.insert(0, ("removed", whole, "", None))
        if kind == "statement" and TAKES_BACK.match(called) and not any(f[0] == "removed" for f in found) and self.in_error_path(begin):
            found.append(("undo", whole, "", None))
        if found:
            self.sites.append(Site(t[begin].begin, t[end - 1].end, kind, found, function, self.line_of(begin), None))

    def only_takes_back(self, first, last):
        """Is it the condition of if (!ok) { ... }, whose body stays in the function, without an else?"""
        t = self.tokens
        if t[first - 2].text != "if" or not FAILURE.match(flat(t, first, last)):
            return False
        end = self.statement_end(last + 1, len(t))
        return end > last + 1 and t[end].text != "else" and not any(x.text in LEAVES for x in t[last + 1:end])

    def in_error_path(self, at):
        """Does a statement stand in the body of if (!ok), or of another test for a failure?"""
        t, depth = self.tokens, 0
        for k in range(at - 1, 0, -1):
            depth += {"}": 1, "{": -1}.get(t[k].text, 0)
            if depth > 0:
                continue
            opens = depth < 0 or k == at - 1
            close = k - 1 if t[k].text == "{" else k
            if opens and t[close].text == ")":
                begin = next(m for m in range(close, 0, -1) if t[m].text == "(" and closing(t, m) == close)
                if t[begin - 1].text == "if" and FAILURE.search(flat(t, begin + 1, close)):
                    return True
            if depth < 0:
                depth = 0
        return False

    # ---- static data ----

    def table(self, begin, equals, stop, function):
        """static T NAME = ...; or static T NAME[] = { ... }; each change is a copy of the whole value."""
        t = self.tokens
        head = t[begin:equals]
        if stop >= len(t) or "const" not in [x.text for x in head] or any(x.text in NEVER for x in head):
            return
        k = equals - 1
        while k > begin and t[k].text == "]":
            while t[k].text != "[":
                k -= 1
            k -= 1
        name = t[k].text
        if t[k].kind != "name" or PERF.search(name.upper()):
            return
        found = []
        for i in range(equals + 1, stop):
            new = self.changed_cell(i)
            if new and t[i - 1].text != "[" and t[i + 1].text != "]":
                near = slice(max(equals + 1, i - 6), min(stop, i + 4))
                before = " ".join(x.text for x in t[near])
                after = " ".join(new if x is t[i] else x.text for x in t[near])
                found.append(("table", f"{name}: {before}", f"{name}: {after}", (i, new)))
        if len(found) > TABLE_CAP:
            found = sorted(random.Random(name).sample(found, TABLE_CAP), key=found.index)
        if found:
            static = any(x.text == "static" for x in head)
            detail = (name, begin, equals, stop, function is not None, static)
            self.sites.append(Site(t[begin].begin, t[stop].end, "table", found, function or name, self.line_of(begin), detail))

    def changed_cell(self, i):
        t = self.tokens[i]
        if t.kind == "number":
            # A lone 0 is "nothing given", the end of a list or a place holder; -1 is "none".
            if t.text == "1" and self.tokens[i - 1].text == "-":
                return "0"
            return changed_number(t.text) if t.text != "0" else None
        if t.kind == "string" and re.fullmatch(r'"\d+(\.\d+)?"', t.text):
            return '"' + changed_number(t.text[1:-1]) + '"'
        if t.text in ("true", "false"):
            return {"true": "false", "false": "true"}[t.text]
        if t.kind == "name":
            return FLAGS.get(t.text) or self.enums.get(t.text)
        return None

    # ---- writing ----

    def faults(self):
        seen = collections.Counter()
        for site in self.sites:
            for change in site.changes:
                what, before, after, cell = change
                base = f"{self.path}:{site.function}:{what}:{before} => {after}"
                seen[base] += 1
                key = hashlib.sha256(f"{base}#{seen[base]}".encode()).hexdigest()[:10]
                line = self.line_of(cell[0]) if site.kind == "table" else site.line
                yield site, change, Fault(self.path, site.function, line, what, before, after, key)

    def readers(self, name):
        """The bodies of the functions that read a table: (first brace, last brace)."""
        return [(i, end) for _, i, end in self.bodies if any(x.text == name for x in self.tokens[i:end])]

    def read_elsewhere(self):
        """Keys of the faults in tables that no function of this file reads."""
        return [fault.key for site, _, fault in self.faults()
                if site.kind == "table" and not site.detail[4] and not self.readers(site.detail[0])]

    def written(self, numbers):
        """The text with the faults in `numbers` (key -> number), and where each stands in it."""
        planted = collections.defaultdict(list)
        for site, change, fault in self.faults():
            if fault.key not in numbers:
                continue
            if change[3] and site.kind != "table":
                for begin, end, new in change[3]:
                    planted[begin, end, site.function].append((numbers[fault.key], (*change[:2], new, None)))
            else:
                planted[site.begin, site.end, site.function].append((numbers[fault.key], change))
        pieces = []  # (begin, end, new text)
        for site in self.sites:
            here = planted.get((site.begin, site.end, site.function))
            if here:
                pieces.append((site.begin, site.end, self.alternatives(site, here)))
            if here and site.kind == "table" and not site.detail[4]:
                marks = "".join(f"(void)TINKC_FAULT({number});" for number, _ in here)  # for the map alone
                at = [self.tokens[i].end for i, _ in self.readers(site.detail[0])]
                pieces += [(begin, begin, marks) for begin in at]
        out, done = [], 0
        for begin, end, new in sorted(pieces, key=lambda p: p[:2]):
            if begin >= done:
                out += [self.text[done:begin], new]
                done = end
        if not out:
            return self.text, []
        text = HEAD + "".join(out) + self.text[done:]
        where = [(number, m.start() + 1, int(m.group(1))) for number, line in enumerate(text.split("\n"), 1)
                 for m in re.finditer(r"TINKC_FAULT(?:_ON)?\((\d+)\)", line)]
        return text, where

    def alternatives(self, site, planted):
        original = self.text[site.begin:site.end]
        rows = [(f"TINKC_FAULT({number})", change[2]) for number, change in planted]
        if site.kind == "constant":
            name, value = site.detail
            return (f"\n#undef {name}\n#define {name} (" + " ".join(f"{on} ? {new.split()[-1]} :" for on, new in rows) +
                    f" {value})\n")
        if site.kind == "table":
            return self.table_text(site, planted, original)
        if site.kind == "statement":
            return "{ " + " else ".join(f"if ({on}) {{ {new} ; }}" for on, new in rows) + f" else {{ {original} }} }}"
        if site.kind == "return":
            return "{ " + " ".join(f"if ({on}) return {new};" for on, new in rows) + f" {original} }}"
        return "(" + " ".join(f"{on} ? ({new}) :" for on, new in rows) + f" ({original}))"

    def table_text(self, site, planted, original):
        """The table, writable, and after it a copy for each fault that is laid over it at the start."""
        name, begin, equals, stop, local, static = site.detail
        t, depth, out = self.tokens, 0, []
        for i in range(begin, equals):  # const goes, but for what stands inside a struct's body
            depth += {"{": 1, "}": -1}.get(t[i].text, 0)
            if not (t[i].text == "const" and depth == 0 and static):
                out.append(t[i].text)
        lines = [" ".join(out) + " " + self.text[t[equals].begin:t[stop].end]]
        copies = []
        for number, (_, _, _, (at, new)) in planted:
            value = self.text[t[equals].begin:t[at].begin] + new + self.text[t[at].end:t[stop].end]
            lines.append(f"static const __typeof__({name}) {name}_{number} {value}")
            on = "TINKC_FAULT" if local else "TINKC_FAULT_ON"
            copies.append(f"if ({on}({number})) tinkc_overlay((void *)&{name}, &{name}_{number}, sizeof {name});")
        if local:
            return "\n".join(lines + copies)
        return "\n".join(lines + [f"__attribute__((constructor(102))) static void tinkc_lay_{name}(void) {{",
                                  "tinkc_fault_start();", *copies, "}"])


HEAD = '#include "tinkc_fault.h"\n'
FAULT_H = r"""/* Written by tools/mutants: is this fault the one that is switched on? */
#ifndef TINKC_FAULT_H
#define TINKC_FAULT_H
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define TINKC_HIDDEN __attribute__((weak, visibility("hidden")))
TINKC_HIDDEN int tinkc_fault_now = -2;
TINKC_HIDDEN unsigned char *tinkc_fault_map = 0;
__attribute__((constructor(101), unused)) static void tinkc_fault_start(void)
{
    if (tinkc_fault_now != -2)
        return;
    const char *on = getenv("TINKC_MUTANT"), *map = getenv("TINKC_MUTANT_MAP");
    tinkc_fault_now = on ? atoi(on) : -1;
    int fd = map ? open(map, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *at = mmap(0, TINKC_FAULTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        tinkc_fault_map = at == MAP_FAILED ? 0 : (unsigned char *)at;
        close(fd);
    }
}
static inline __attribute__((unused)) int tinkc_fault(int n)
{
    if (__builtin_expect(tinkc_fault_map != 0, 0))
        tinkc_fault_map[n] = 1;
    return __builtin_expect(tinkc_fault_now == n, 0);
}
/* A table that headers declare const lies on pages that are read-only. */
static inline __attribute__((unused)) void tinkc_overlay(void *to, const void *from, size_t len)
{
    uintptr_t page = (uintptr_t)to & ~(uintptr_t)4095;
    mprotect((void *)page, (uintptr_t)to + len - page, PROT_READ | PROT_WRITE);
    memcpy(to, from, len);
}
#define TINKC_FAULT(n) tinkc_fault(n)
#define TINKC_FAULT_ON(n) (tinkc_fault_now == (n))
#endif
"""
