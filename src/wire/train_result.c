/* train_result.c - results of forward_backward: protobuf and JSON, both ways. May touch: what it
 * was given.
 *
 * A result is a list of records; each holds, field by field, the tensors of its datums back to
 * back. Reading checks everything once, so that extracting a datum's tensor later can only fail
 * for lack of memory.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "wire/bulk.h"
#include "wire/tensor.h"

/* More datums than any request can have: bounds the work that a hostile answer can cause. */
#define MOST_DATUMS ((int64_t)1 << 24)

/* ---- protobuf: writing ---- */

static size_t text_size(const char *text)
{
    return text && *text ? tkc_pb_size_bytes(strlen(text)) : 0;
}

static size_t bytes_size(size_t len)
{
    return len ? tkc_pb_size_bytes(len) : 0;
}

static size_t tensor_size(const tkc_batched_tensor *t)
{
    size_t dtype = t->dtype ? 1 + tkc_pb_size_varint((uint64_t)t->dtype) : 0;
    return bytes_size(t->data.len) + bytes_size(t->offsets.len * 8) + dtype +
           tkc_bulk_varints_size(t->trailing);
}

static size_t field_size(const tkc_batched_tensor *t)
{
    return tkc_pb_size_bytes(strlen(t->name)) + tkc_pb_size_bytes(tensor_size(t));
}

static size_t record_size(const tkc_array_record *r)
{
    size_t size = text_size(r->type_tag);
    for (size_t i = 0; i < r->fields.len; i++)
        size += tkc_pb_size_bytes(field_size(&r->fields.data[i]));
    return size + (r->n_datums ? 1 + tkc_pb_size_varint((uint64_t)r->n_datums) : 0);
}

static size_t output_size(const tkc_forward_backward_output *o)
{
    size_t size = text_size(o->type) + tkc_bulk_numbers_size(&o->metrics);
    for (size_t i = 0; i < o->records.len; i++)
        size += tkc_pb_size_bytes(record_size(&o->records.data[i]));
    return size;
}

static unsigned char *put_optional(unsigned char *at, uint32_t field, const void *bytes, size_t len)
{
    return len ? tkc_pb_put_bytes(at, field, bytes, len) : at;
}

static unsigned char *put_number(unsigned char *at, uint32_t field, uint64_t value)
{
    return value ? tkc_pb_put_varint(tkc_pb_put_tag(at, field, TKC_PB_VARINT), value) : at;
}

static unsigned char *put_field(unsigned char *at, const tkc_batched_tensor *t)
{
    at = tkc_pb_put_head(at, 2, field_size(t));
    at = tkc_pb_put_bytes(at, 1, t->name, strlen(t->name));
    at = tkc_pb_put_head(at, 2, tensor_size(t));
    at = put_optional(at, 1, t->data.data, t->data.len);
    at = put_optional(at, 2, t->offsets.data, t->offsets.len * 8);
    at = put_number(at, 3, (uint64_t)t->dtype);
    return tkc_bulk_put_varints(at, 4, t->trailing);
}

static unsigned char *put_record(unsigned char *at, const tkc_array_record *r)
{
    at = tkc_pb_put_head(at, 2, record_size(r));
    at = put_optional(at, 1, r->type_tag, r->type_tag ? strlen(r->type_tag) : 0);
    for (size_t i = 0; i < r->fields.len; i++)
        at = put_field(at, &r->fields.data[i]);
    return put_number(at, 3, (uint64_t)r->n_datums);
}

static bool check_texts(const tkc_forward_backward_output *o, tinkc_error *err)
{
    if (o->type && !tkc_bulk_check_text(o->type, "the output's type", err))
        return false;
    for (size_t i = 0; i < o->metrics.len; i++)
        if (!tkc_bulk_check_text(o->metrics.names[i], "the name of a metric", err))
            return false;
    for (size_t i = 0; i < o->records.len; i++)
        for (size_t k = 0; k < o->records.data[i].fields.len; k++)
            if (!tkc_bulk_check_text(o->records.data[i].fields.data[k].name,
                                     "the name of an output", err))
                return false;
    return true;
}

bool tkc_output_to_pb(const tkc_forward_backward_output *o, tkc_buf *out, tinkc_error *err)
{
    if (tkc_failed(err) || !check_texts(o, err))
        return false;
    size_t size = output_size(o);
    unsigned char *at = (unsigned char *)tkc_buf_room(out, size, err);
    if (!at)
        return false;
    at = put_optional(at, 1, o->type, o->type ? strlen(o->type) : 0);
    for (size_t i = 0; i < o->records.len; i++)
        at = put_record(at, &o->records.data[i]);
    at = tkc_bulk_put_numbers(at, 3, &o->metrics);
    size_t written = (size_t)((char *)at - (out->data + out->len));
    if (written != size)
        return tkc_fail(err, TINKC_E_STATE, "an output of %zu bytes was measured as %zu", written,
                        size);
    assert(out->len + size <= out->cap);
    out->len += size;
    return true;
}

/* ---- protobuf: reading ---- */

static bool read_tensor(const tkc_bulk *b, tinkc_bytes bytes, tkc_batched_tensor *out)
{
    tkc_pb p;
    tinkc_bytes data = { NULL, 0 }, offsets = { NULL, 0 };
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            data = p.bytes;
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES))
            offsets = p.bytes;
        else if (tkc_pb_is(&p, 3, TKC_PB_VARINT))
            out->dtype = (int32_t)(uint32_t)p.number;
    }
    if (!tkc_bulk_done(b, &p) || !tkc_bulk_varints(b, bytes, 4, &out->trailing))
        return false;
    if (*tkc_dtype_name(out->dtype) == '\0')
        return tkc_bulk_fail(b, "an element type that is not known");
    if (offsets.len % 8 != 0)
        return tkc_bulk_fail(b, "offsets: the length is not a multiple of 8 bytes");
    out->data = (tinkc_bytes){ tkc_bulk_view(b, data, tkc_dtype_size(out->dtype)), data.len };
    out->offsets = (tinkc_i64s){ tkc_bulk_view(b, offsets, 8), offsets.len / 8 };
    return !tkc_failed(b->err);
}

static bool read_entry(const tkc_bulk *b, tinkc_bytes entry, tkc_batched_tensor *out)
{
    tkc_pb value;
    if (!tkc_bulk_entry(b, entry, &out->name, &value))
        return false;
    if (!tkc_pb_is(&value, 2, TKC_PB_BYTES))
        return tkc_bulk_fail(b, "an output without tensor");
    return read_tensor(b, value.bytes, out);
}

static bool read_record(const tkc_bulk *b, tinkc_bytes bytes, tkc_array_record *out)
{
    tkc_pb p;
    size_t n = tkc_bulk_count(bytes, 2), k = 0;
    tkc_batched_tensor *fields = tkc_arena_array(b->arena, n, sizeof *fields, b->err);
    *out = (tkc_array_record){ .type_tag = "" };
    if (!fields)
        return false;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            out->type_tag = tkc_bulk_str(b, p.bytes);
        else if (tkc_pb_is(&p, 3, TKC_PB_VARINT))
            out->n_datums = (int64_t)p.number;
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES) && !read_entry(b, p.bytes, &fields[k++]))
            return false;
    }
    if (!tkc_bulk_done(b, &p))
        return false;
    assert(k == n); /* as many as were counted */
    out->fields.data = fields;
    out->fields.len = tkc_bulk_unique(b, fields, k, sizeof *fields);
    if (out->n_datums < 0 || out->n_datums > MOST_DATUMS)
        return tkc_bulk_fail(b, "a number of datums that cannot be");
    return !tkc_failed(b->err);
}

/* ---- checking what was read ---- */

static const tkc_batched_tensor *find_field(const tkc_array_record *r, const char *name)
{
    for (size_t i = 0; i < r->fields.len; i++)
        if (strcmp(r->fields.data[i].name, name) == 0)
            return &r->fields.data[i];
    return NULL;
}

static bool check_offsets(const tkc_bulk *b, const tkc_batched_tensor *t, int64_t n_datums)
{
    size_t size = tkc_dtype_size(t->dtype), row;
    if (t->offsets.len != (uint64_t)n_datums + 1)
        return tkc_bulk_fail(b, "as many offsets as datums and one more are needed");
    if (!tkc_shape_count(t->trailing, &row))
        return tkc_bulk_fail(b, "a trailing shape that is negative or too large");
    for (size_t i = 0; i < t->offsets.len; i++) {
        int64_t at = t->offsets.data[i], before = i ? t->offsets.data[i - 1] : 0;
        if (at < before || (uint64_t)at > t->data.len || (uint64_t)at % size != 0)
            return tkc_bulk_fail(b, "offsets that fall, lead outside or cut an element");
        if (i && row && (uint64_t)(at - before) / size % row != 0)
            return tkc_bulk_fail(b, "a tensor that its trailing shape does not fit");
    }
    return true;
}

static bool check_record(const tkc_bulk *b, const tkc_array_record *r,
                         const tkc_array_record *first)
{
    if (r->fields.len != first->fields.len)
        return tkc_bulk_fail(b, "records with different fields");
    for (size_t i = 0; i < r->fields.len; i++) {
        if (!find_field(first, r->fields.data[i].name))
            return tkc_bulk_fail(b, "records with different fields");
        if (!check_offsets(b, &r->fields.data[i], r->n_datums))
            return false;
    }
    return true;
}

/* If no record gives its number of datums, it follows from the record's first field. */
static void count_by_fields(tkc_array_record *records, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (records[i].fields.len && records[i].fields.data[0].offsets.len)
            records[i].n_datums = (int64_t)records[i].fields.data[0].offsets.len - 1;
}

static bool finish_records(const tkc_bulk *b, tkc_array_record *records, size_t n,
                           tkc_forward_backward_output *out)
{
    int64_t total = 0;
    bool said = false;
    for (size_t i = 0; i < n; i++)
        said = said || records[i].n_datums > 0;
    if (!said)
        count_by_fields(records, n);
    for (size_t i = 0; i < n; i++) {
        total += records[i].n_datums;
        if (total > MOST_DATUMS)
            return tkc_bulk_fail(b, "a number of datums that cannot be");
        if (!check_record(b, &records[i], &records[0]))
            return false;
    }
    out->records.data = records;
    out->records.len = n;
    out->n_datums = (size_t)total;
    return true;
}

/* "module:Class" becomes "Class"; an empty type without records becomes "ArrayRecord". */
static const char *short_type(const char *type, size_t n_records)
{
    if (n_records == 0)
        return *type ? type : "ArrayRecord";
    const char *colon = strrchr(type, ':');
    return colon ? colon + 1 : type;
}

bool tkc_output_from_pb(tinkc_bytes bytes, tkc_arena *arena, tkc_forward_backward_output *out,
                        tinkc_error *err)
{
    tkc_bulk b = { arena, err, TINKC_E_BAD_RESPONSE, "forward_backward result" };
    tkc_pb p;
    size_t n = tkc_bulk_count(bytes, 2), k = 0;
    *out = (tkc_forward_backward_output){ .type = "" };
    if (tkc_failed(err))
        return false;
    tkc_array_record *records = tkc_arena_array(arena, n, sizeof *records, err);
    if (!records)
        return false;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES) && !(out->type = tkc_bulk_str(&b, p.bytes)))
            return false;
        if (tkc_pb_is(&p, 2, TKC_PB_BYTES) && !read_record(&b, p.bytes, &records[k++]))
            return false;
    }
    assert(k <= n);
    if (!tkc_bulk_done(&b, &p) || !finish_records(&b, records, k, out))
        return false;
    out->type = short_type(out->type, k);
    return tkc_bulk_numbers(&b, bytes, 3, &out->metrics);
}

/* ---- extracting tensors ---- */

static bool slice(const tkc_batched_tensor *t, size_t i, tkc_arena *arena, tinkc_tensor *out,
                  tinkc_error *err)
{
    size_t size = tkc_dtype_size(t->dtype), row = 1;
    size_t from = (size_t)t->offsets.data[i], to = (size_t)t->offsets.data[i + 1];
    assert(size && i + 1 < t->offsets.len && from <= to && to <= t->data.len);
    size_t count = (to - from) / size;
    const void *data = tkc_widen(t->data.data + from, count, t->dtype, arena, err);
    int64_t *shape = tkc_arena_array(arena, t->trailing.len + 1, sizeof *shape, err);
    if (!data || !shape || !tkc_shape_count(t->trailing, &row))
        return false;
    shape[0] = row ? (int64_t)(count / row) : 0;
    for (size_t k = 0; k < t->trailing.len; k++)
        shape[k + 1] = t->trailing.data[k];
    *out = (tinkc_tensor){ tkc_wide_dtype(t->dtype), (int32_t)t->trailing.len + 1, shape, data,
                           count };
    return true;
}

bool tkc_output_tensor(const tkc_forward_backward_output *o, size_t i, const char *name,
                       tkc_arena *arena, tinkc_tensor *out, tinkc_error *err)
{
    for (size_t r = 0; r < o->records.len; r++) {
        const tkc_array_record *record = &o->records.data[r];
        if (i < (size_t)record->n_datums) {
            const tkc_batched_tensor *t = find_field(record, name);
            return t && slice(t, i, arena, out, err);
        }
        i -= (size_t)record->n_datums;
    }
    return false;
}

/* ---- records out of single tensors ---- */

static const tkc_tensor *row_field(const tkc_output_row *row, const char *name)
{
    for (size_t i = 0; i < row->fields.len; i++)
        if (strcmp(row->fields.data[i].name, name) == 0)
            return &row->fields.data[i].tensor;
    return NULL;
}

static tinkc_i64s trailing_of(const tkc_tensor *t)
{
    if (t->shape.len < 2)
        return (tinkc_i64s){ NULL, 0 };
    return (tinkc_i64s){ t->shape.data + 1, t->shape.len - 1 };
}

static bool same_kind(const tkc_tensor *a, const tkc_tensor *b)
{
    assert(a && b);
    tinkc_i64s x = trailing_of(a), y = trailing_of(b);
    return a->dtype == b->dtype && x.len == y.len &&
           (x.len == 0 || memcmp(x.data, y.data, x.len * sizeof *x.data) == 0);
}

/* Whether both fit in one record. The rows are known to have the same names. */
static bool same_record(const tkc_output_row *a, const tkc_output_row *b)
{
    for (size_t i = 0; i < a->fields.len; i++)
        if (!same_kind(&a->fields.data[i].tensor, row_field(b, a->fields.data[i].name)))
            return false;
    return true;
}

static bool check_rows(const tkc_output_row *rows, size_t n, tinkc_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].fields.len != rows[0].fields.len)
            return tkc_fail(err, TINKC_E_TENSOR, "datum %zu has other outputs than the first", i);
        for (size_t k = 0; k < rows[0].fields.len; k++) {
            const char *name = rows[0].fields.data[k].name;
            const tkc_tensor *t = row_field(&rows[i], name);
            if (!t || t->sparse)
                return tkc_fail(err, TINKC_E_TENSOR, "datum %zu has no dense output %s", i, name);
            if (!tkc_tensor_check(t, name, err))
                return false;
        }
    }
    return true;
}

static bool gather_field(const tkc_output_row *rows, size_t n, const char *name, tkc_arena *arena,
                         tkc_batched_tensor *out, tinkc_error *err)
{
    assert(n > 0);
    const tkc_tensor *first = row_field(&rows[0], name);
    size_t size = tkc_dtype_size(first->dtype), total = 0;
    int64_t *offsets = tkc_arena_array(arena, n + 1, sizeof *offsets, err);
    for (size_t i = 0; i < n; i++)
        total += row_field(&rows[i], name)->count * size;
    unsigned char *data = tkc_arena_alloc(arena, total, err);
    if (!offsets || !data)
        return false;
    for (size_t i = 0, at = 0; i < n; i++) {
        const tkc_tensor *t = row_field(&rows[i], name);
        if (t->count)
            memcpy(data + at, t->data, t->count * size);
        at += t->count * size;
        assert(t->dtype == first->dtype && at <= total);
        offsets[i + 1] = (int64_t)at;
    }
    *out = (tkc_batched_tensor){
        name, { data, total }, { offsets, n + 1 }, trailing_of(first), first->dtype
    };
    return true;
}

static bool make_record(const tkc_output_row *rows, size_t n, tkc_arena *arena,
                        tkc_array_record *out, tinkc_error *err)
{
    size_t n_fields = rows[0].fields.len;
    tkc_batched_tensor *fields = tkc_arena_array(arena, n_fields, sizeof *fields, err);
    if (!fields)
        return false;
    for (size_t k = 0; k < n_fields; k++)
        if (!gather_field(rows, n, rows[0].fields.data[k].name, arena, &fields[k], err))
            return false;
    *out = (tkc_array_record){ .type_tag = "", .n_datums = (int64_t)n };
    out->fields.data = fields;
    out->fields.len = n_fields;
    return true;
}

bool tkc_output_from_rows(const tkc_output_row *rows, size_t n, tkc_arena *arena,
                          tkc_forward_backward_output *out, tinkc_error *err)
{
    size_t n_records = 0;
    if (!check_rows(rows, n, err))
        return false;
    tkc_array_record *records = tkc_arena_array(arena, n, sizeof *records, err);
    if (!records)
        return false;
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && same_record(&rows[from], &rows[to]);)
            to++;
        if (!make_record(&rows[from], to - from, arena, &records[n_records++], err))
            return false;
    }
    assert(n_records <= n);
    out->records.data = records;
    out->records.len = n_records;
    out->n_datums = n;
    return true;
}

/* ---- JSON ---- */

static void write_datum(tkc_jsonw *w, const tkc_forward_backward_output *o,
                        const tkc_array_record *r, size_t i, tkc_arena *arena)
{
    tkc_jsonw_object(w);
    for (size_t k = 0; k < r->fields.len && !tkc_failed(w->err); k++) {
        tinkc_tensor t;
        if (!tkc_output_tensor(o, i, r->fields.data[k].name, arena, &t, w->err))
            break;
        tkc_tensor wide = { .data = t.data, .count = t.count, .dtype = t.dtype };
        wide.shape = (tinkc_i64s){ t.shape, (size_t)t.ndim };
        tkc_jsonw_key(w, r->fields.data[k].name);
        tkc_tensor_write(w, &wide);
    }
    tkc_jsonw_end(w);
}

static void write_datums(tkc_jsonw *w, const tkc_forward_backward_output *o, tkc_arena *arena)
{
    size_t i = 0;
    tkc_jsonw_array(w);
    for (size_t r = 0; r < o->records.len; r++)
        for (int64_t k = 0; k < o->records.data[r].n_datums && !tkc_failed(w->err); k++)
            write_datum(w, o, &o->records.data[r], i++, arena);
    tkc_jsonw_end(w);
}

bool tkc_output_to_json(const tkc_forward_backward_output *o, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_arena arena;
    if (tkc_failed(err) || !check_texts(o, err))
        return false;
    tkc_arena_init(&arena, out->a, 0);
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "loss_fn_output_type");
    tkc_jsonw_cstr(&w, o->type ? o->type : "");
    tkc_jsonw_key(&w, "loss_fn_outputs");
    write_datums(&w, o, &arena);
    tkc_jsonw_key(&w, "metrics");
    tkc_jsonw_object(&w);
    for (size_t i = 0; i < o->metrics.len; i++) {
        tkc_jsonw_key(&w, o->metrics.names[i]);
        tkc_jsonw_double(&w, o->metrics.values[i]);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

typedef struct json_output {
    const char *type;
    TKC_ARRAY(tkc_output_row) rows;
    tkc_numbers metrics;
} json_output;

static bool has_name(const tkc_named_tensor *fields, size_t n, tinkc_str name)
{
    for (size_t i = 0; i < n; i++)
        if (tkc_str_is(name, fields[i].name))
            return true;
    return false;
}

/* The fields of one datum. Later code relies on each name being unique. */
static void read_row(tkc_json *j, tkc_output_row *out)
{
    enum { MOST = 1000 }; /* a limit keeps the search for duplicate names cheap */
    tkc_named_tensor *fields = NULL;
    size_t n = 0, cap = 0;
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        fields = tkc_read_grow(j, fields, n, &cap, sizeof *fields);
        if (!fields)
            return;
        if (n == MOST || has_name(fields, n, key))
            tkc_json_fail(j, "too many outputs, or one twice");
        if (key.len && memchr(key.data, '\0', key.len))
            tkc_json_fail(j, "U+0000 in a key");
        fields[n].name = tkc_arena_str(j->arena, key, j->err);
        tkc_tensor_read(j, &fields[n++].tensor);
    }
    out->fields.data = fields;
    out->fields.len = n;
}

static void read_rows(tkc_json *j, void *member)
{
    struct {
        const tkc_output_row *data;
        size_t len;
    } out = { NULL, 0 };
    tkc_output_row *rows = NULL;
    size_t cap = 0;
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        rows = tkc_read_grow(j, rows, out.len, &cap, sizeof *rows);
        if (!rows)
            return;
        read_row(j, &rows[out.len++]);
    }
    out.data = rows;
    memcpy(member, &out, sizeof out);
}

static const tkc_custom rows_codec = { .read = read_rows }; /* only read */
static const tkc_field output_fields[] = {
    { "loss_fn_output_type", TKC_STR, TKC_MUST, offsetof(json_output, type), NULL },
    { "loss_fn_outputs", TKC_CUSTOM, TKC_MUST, offsetof(json_output, rows), &rows_codec },
    { "metrics", TKC_NUMBERS, TKC_MUST, offsetof(json_output, metrics), NULL },
};
static const tkc_message output_type = { "forward_backward result", sizeof(json_output),
                                         output_fields,
                                         sizeof output_fields / sizeof *output_fields, NULL };

bool tkc_output_from_json(tinkc_str json, tkc_arena *arena, tkc_forward_backward_output *out,
                          tinkc_error *err)
{
    json_output read;
    tinkc_error bad = { 0 };
    *out = (tkc_forward_backward_output){ .type = "" };
    if (!tkc_message_decode(&output_type, json, TINKC_E_BAD_RESPONSE, arena, &read, err))
        return false;
    if (!tkc_output_from_rows(read.rows.data, read.rows.len, arena, out, &bad))
        return tkc_fail(err, bad.code == TINKC_E_TENSOR ? TINKC_E_BAD_RESPONSE : bad.code,
                        "forward_backward result: %s", bad.message);
    out->type = short_type(read.type, read.rows.len);
    out->metrics = read.metrics;
    return true;
}
