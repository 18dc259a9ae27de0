"""What transcripts show of a training run, apart from what differs from run to run.

    run_folder.py FOLDER [FILE...]       its files, or these: rows, settings, rollouts, and the trackers' records decoded
"""
import datetime, json, os, pathlib, re, struct, sys, zlib
import stub_trainer

# Times that can be right: less than 100 s, this century. Others stay, and differ.
TIMES = [(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "WHEN"), (r"20\d\d-\d\d-\d\d[-T]\d\d-\d\d(-\d\d)?", "WHEN"), (r"\b[\d.]+ tok/s", "N tok/s"),
         (r"ETA (?:[\d.]{1,3}s|\dm\d\ds)(?=\s|$)", "ETA TIME"), (r'("took_ms"): ?\d{1,5}\b', r"\1:TIME"),
         (r'("time[^"]*"|"(?:duration|_runtime)"): ?(?:0|[1-9]\d?)(?:\.\d+)?(?:e-\d+)?\b', r"\1:TIME"), (r'("(?:wall_\w+|_timestamp)"): ?[12]\d{9}(?:\.\d+)?(?:e\+\d+)?\b', r"\1:TIME"),
         (r"(train\w*|ask|term|out|metric_exports):\d+ \[", r"\1:LINE ["), (r'("version": ?)"[^"]*"', r'\1"VERSION"'),
         (r"\d+\.\d{6,}(e-?\d+)?", lambda m: str(float(f"{float(m[0]):.6g}")))]


DASHED = os.environ.get("NANO", "/").replace("/", "-").strip("-") or "NANO"  # the model's folder as part of a name


def masked(text):
    text = re.sub(r"promise-\d+", "PROMISE", text).replace(DASHED, "NANO")
    for pattern, name in TIMES:
        text = re.sub(pattern, name, text)
    return "\n".join(line for line in text.split("\n") if not is_between(line))


def is_between(line):
    step = re.match(r"(?:! )?step (\d+)/(\d+) ", line)
    return bool(step) and step[1] not in ("1", step[2])


def line_of(value):
    return masked(json.dumps(stub_trainer.short(value), ensure_ascii=False))


# ---- the trackers' files ----


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def decoded(data):
    """A protobuf message as {field: [values]}; bytes that are a message themselves are read, too."""
    out, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        kind, field = tag & 7, tag >> 3
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
            if len(value) != size:
                raise ValueError("a field is cut")
        else:
            raise ValueError("unknown kind of field")
        out.setdefault(field, []).append(value)
    return out


def tree(data, shape):
    """The message with the parts that `shape` names decoded, too."""
    out = {}
    for field, values in decoded(data).items():
        inner = shape.get(field)
        out[field] = [tree(v, inner) if inner is not None else v.decode() if isinstance(v, bytes) else v for v in values]
    return out


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def board(path):
    """Of TensorBoard: each event, its time aside."""
    data, at, last = path.read_bytes(), 0, 0.0
    while at < len(data):
        size, check = struct.unpack_from("<QI", data, at)
        event = data[at + 12:at + 12 + size]
        assert check == crc32c(data[at:at + 8]) and struct.unpack_from("<I", data, at + 12 + size)[0] == crc32c(event)
        fields = tree(event, {5: {1: {}}, 7: {}})
        when = fields.pop(1)[0]
        assert when >= max(last, 1.5e9)
        last = when
        yield {k: [v if not isinstance(v, dict) else timeless(v) for v in vs] for k, vs in fields.items()}
        at += 16 + size


def timeless(summary):
    return {k: [v if not isinstance(v, dict) or not str(v.get(1, "")).startswith("['time") else {1: v[1]} for v in vs] for k, vs in summary.items()}


def tracked(path):
    """Of Weights & Biases: each record, times aside."""
    data, at, record = path.read_bytes(), 7, b""
    assert data[:7] == b":W&B\xe1\xbe\0"
    while at < len(data):
        room = 32768 - at % 32768
        if room < 7:
            assert data[at:at + room] == bytes(room)
            at += room
            continue
        check, size, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + 7:at + 7 + size]
        assert check == zlib.crc32(bytes([kind]) + piece) and bool(record) == (kind in (3, 4))
        record, at = record + piece, at + 7 + size
        if kind in (1, 4):
            yield tree(record, {2: {1: {}, 2: {}}, 3: {1: {}}, 17: {4: {1: {}}, 17: {}}, 18: {}, 21: {1: {}}})
            record = b""


def show_tracked(path):
    wandb_id = path.stem[4:]
    assert path.parent.name.endswith("-" + wandb_id) and re.fullmatch(r"offline-run-\d{8}_\d{6}-[a-z0-9]{8}", path.parent.name)
    begun = datetime.datetime.strptime(path.parent.name[12:27] + "+0000", "%Y%m%d_%H%M%S%z")  # transcripts run with TZ=UTC
    assert abs(begun.timestamp() - path.stat().st_mtime) < 1200
    for r in tracked(path):
        for run in r.get(17, []):
            began = run.pop(17)[0]
            assert began[1][0] > 1.5e9 and 0 <= began[2][0] < 1e9 and began[2][0] % 1000 == 0
            run[13], run[1] = ["HOST" if run[13][0] else ""], ["ID" if run[1] == [wandb_id] else run[1]]
            run[4] = [{i[1][0]: i[16][0] for i in run[4][0][1]}]
        for part in r.get(2, []) + r.get(3, []):
            items = {i[2][0]: json.loads(i[16][0]) for i in part[1]}
            assert 0 <= items["_runtime"] < 3600 and items["_timestamp"] > 1.5e9
            part[1] = [json.loads(masked(json.dumps(items)).replace(":TIME", ": 0"))]
        for header in r.get(21, []):
            header[1][0][1] = [re.sub(r"tinkc \d[\w.-]*", "tinkc VERSION", header[1][0][1][0])]
        print(" ", masked(str(stub_trainer.short(r))))


# ---- a folder ----


def show_rows(path):
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            print(" ", line)
            continue
        if "spans" in row:
            row = {"step": row["step"], "spans": [s["name"] for s in row["spans"] if abs(s["wall_end"] - s["wall_start"] - s["duration"]) < 1e-3
                                                  and 0 <= s["duration"] < 3600 and s["wall_start"] > 1.5e9]}
        for name in ("tokens", "logprobs", "mask"):
            if name in row:
                row[name] = stub_trainer.runs(row[name])
        print(" ", line_of(row))


def show(folder, wanted):
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = re.sub(r"\d{8}_\d{6}-\w{8}|tfevents\..*\.tinkc|run-\w{8}\.", "ID.", str(path.relative_to(folder)))
        if wanted and not any(w in name for w in wanted):
            continue
        print(f"{folder.name}/{name}")
        if path.suffix == ".jsonl":
            show_rows(path)
        elif path.suffix == ".json":
            value = json.loads(path.read_text())
            print(" ", line_of(value))
        elif path.suffix == ".wandb":
            show_tracked(path)
        elif path.suffix == ".tinkc":
            for event in board(path):
                print(" ", masked(str(stub_trainer.short(event))))
        else:
            print("\n".join("  " + line for line in masked(path.read_text()).splitlines()))


show(pathlib.Path(sys.argv[1]), sys.argv[2:])
