/* rollout.c - one episode's record: its tokens as they were sampled, and its form on disk.
 *
 * On disk a rollout is a line of the cookbook's rollout summaries with the tokens added, so that
 * both its readers and a resumed run find what they need. Floats are written so that they read back
 * as the same bits.
 */
#include "recipes/rollout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"

/* ---- making ---- */

static const char *kept(tkc_arena *arena, const char *text, tinkc_error *err)
{
    return text ? tkc_arena_cstr(arena, text, err) : NULL;
}

tinkc_group *tkr_group_new(const tinkc_task *task, size_t n, uint64_t id, tinkc_error *err)
{
    char number[40];
    tinkc_group *g = tkc_zalloc(NULL, sizeof *g, err);
    if (!g)
        return NULL;
    tkc_arena_init(&g->arena, NULL, 0);
    (void)snprintf(number, sizeof number, "task %llu", (unsigned long long)id);
    g->row = kept(&g->arena, task->row_json ? task->row_json : "{}", err);
    g->answer = kept(&g->arena, task->answer, err);
    g->where = kept(&g->arena, task->where ? task->where : number, err);
    g->tag = kept(&g->arena, task->tag, err);
    g->id = id;
    g->all = tkc_zalloc(NULL, n * sizeof *g->all, err);
    if (g->all)
        g->n = n;
    if (!tkc_failed(err))
        return g;
    tinkc_group_free(g);
    return NULL;
}

static void free_rollout(tkr_rollout *r)
{
    tinkc_tokens_free(&r->tokens);
    tinkc_floats_free(&r->logprobs);
    tinkc_floats_free(&r->mask);
    tkc_release(NULL, r->ends, r->ends_cap * sizeof *r->ends);
    tkr_table_free(&r->metrics);
    tinkc_text_free(&r->text);
    tkc_release_str(NULL, r->messages);
    tkc_release_str(NULL, r->error);
}

void tinkc_group_free(tinkc_group *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++)
        free_rollout(&g->all[i]);
    tkc_release(NULL, g->all, g->n * sizeof *g->all);
    tkc_arena_free(&g->arena);
    tkc_release(NULL, g, sizeof *g);
}

bool tkr_rollout_append(tkr_rollout *r, const int32_t *ids, const float *logprobs, size_t n,
                        tinkc_error *err)
{
    const float zero = 0, one = 1;
    if (!tinkc_tokens_append(&r->tokens, ids, n, err))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!tinkc_floats_append(&r->logprobs, logprobs ? &logprobs[i] : &zero, 1, err) ||
            !tinkc_floats_append(&r->mask, logprobs ? &one : &zero, 1, err))
            return false;
    if (logprobs)
        r->sampled += n;
    else
        r->read += n;
    return true;
}

bool tkr_rollout_end_example(tkr_rollout *r, tinkc_error *err)
{
    size_t *grown = tkc_grow(NULL, r->ends, &r->ends_cap, r->n_ends + 1, sizeof *grown, err);
    if (!grown)
        return false;
    r->ends = grown;
    r->ends[r->n_ends++] = r->tokens.len;
    return true;
}

void tkr_rollout_fail(tkr_rollout *r, const char *format, ...)
{
    char text[400];
    va_list args;
    if (r->error)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tinkc_error none = { 0 };
    r->error = tkc_copy_str(NULL, tkc_str(text), &none);
    r->reward = 0;
}

void tkr_rollout_show(tinkc_group *g, size_t index)
{
    static const char *const none[] = { NULL };
    tkr_rollout *r = &g->all[index];
    r->seen = (tinkc_rollout){ .group = (size_t)g->id,
                               .index = index,
                               .tokens = { r->tokens.data, r->tokens.len },
                               .logprobs = { r->logprobs.data, r->logprobs.len },
                               .mask = { r->mask.data, r->mask.len },
                               .ends = r->ends,
                               .n_examples = r->n_ends,
                               .turns = r->turns,
                               .sampled_tokens = r->sampled,
                               .read_tokens = r->read,
                               .reward = r->reward,
                               .metric_names = r->metrics.n ? r->metrics.names : none,
                               .metric_values = r->metrics.values,
                               .text = r->text.data ? r->text.data : "",
                               .messages_json = r->messages ? r->messages : "[]",
                               .answer = g->answer,
                               .row_json = g->row,
                               .where = g->where,
                               .error = r->error,
                               .stop_reason = r->stop_reason,
                               .took_ms = r->took_ms };
}

uint64_t tinkc_group_id(const tinkc_group *g)
{
    return g ? g->id : 0;
}

size_t tinkc_group_count(const tinkc_group *g)
{
    return g ? g->n : 0;
}

const tinkc_rollout *tinkc_group_at(const tinkc_group *g, size_t i)
{
    return g && i < g->n ? &g->all[i].seen : NULL;
}

const char *tinkc_group_tag(const tinkc_group *g)
{
    return g ? g->tag : NULL;
}

/* ---- on disk ---- */

static void write_head(tkc_jsonw *w, const tinkc_group *g, const tkr_rollout *r, size_t index)
{
    tkc_jsonw_key(w, "schema_version");
    tkc_jsonw_i64(w, 1);
    tkc_jsonw_key(w, "group_idx");
    tkc_jsonw_u64(w, g->id);
    tkc_jsonw_key(w, "traj_idx");
    tkc_jsonw_u64(w, index);
    tkc_jsonw_key(w, "group_size");
    tkc_jsonw_u64(w, g->n);
    tkc_jsonw_key(w, "tags");
    tkc_jsonw_array(w);
    if (g->tag)
        tkc_jsonw_cstr(w, g->tag);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "where");
    tkc_jsonw_cstr(w, g->where);
    tkc_jsonw_key(w, "total_reward");
    tkc_jsonw_double(w, r->reward);
    tkc_jsonw_key(w, "error");
    tkc_jsonw_cstr(w, r->error);
    tkc_jsonw_key(w, "turns");
    tkc_jsonw_u64(w, r->turns);
    tkc_jsonw_key(w, "stop_reason");
    tkc_jsonw_cstr(w, r->stop_reason == TINKC_STOP ? "stop" : "length");
    tkc_jsonw_key(w, "took_ms");
    tkc_jsonw_i64(w, r->took_ms);
}

static void write_rollout(tkc_jsonw *w, const tinkc_group *g, size_t index)
{
    const tkr_rollout *r = &g->all[index];
    tkc_jsonw_object(w);
    write_head(w, g, r, index);
    tkc_jsonw_key(w, "trajectory_metrics");
    tkc_jsonw_object(w);
    for (size_t i = 0; i < r->metrics.n; i++) {
        tkc_jsonw_key(w, r->metrics.names[i]);
        tkc_jsonw_double(w, r->metrics.values[i]);
    }
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "text");
    tkc_jsonw_str(w, (tinkc_str){ r->text.data ? r->text.data : "", r->text.len });
    tkc_jsonw_key(w, "messages");
    tkc_jsonw_raw(w, tkc_str(r->messages ? r->messages : "[]"));
    tkc_jsonw_key(w, "answer");
    tkc_jsonw_cstr(w, g->answer);
    tkc_jsonw_key(w, "tokens");
    tkc_jsonw_i32s(w, r->tokens.data, r->tokens.len);
    tkc_jsonw_key(w, "logprobs");
    tkc_jsonw_f32s(w, r->logprobs.data, r->logprobs.len);
    tkc_jsonw_key(w, "mask");
    tkc_jsonw_f32s(w, r->mask.data, r->mask.len);
    tkc_jsonw_key(w, "ends");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < r->n_ends; i++)
        tkc_jsonw_u64(w, r->ends[i]);
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

bool tinkc_group_write(const tinkc_group *g, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    tkc_buf line;
    if (!tkc_enter(&err, &local))
        return false;
    tkc_buf_init(&line, NULL, TKC_BUF_NO_MAX);
    for (size_t i = 0; i < g->n && !tkc_failed(err); i++) {
        tkc_jsonw w;
        tkc_buf_clear(&line);
        tkc_jsonw_open(&w, &line, err);
        write_rollout(&w, g, i);
        tkc_buf_char(&line, '\n', err);
        tinkc_text_append(out, line.data, line.len, err);
    }
    tkc_buf_free(&line);
    return !tkc_failed(err);
}

/* ---- back from disk ---- */

typedef struct line_read { /* one rollout as it stands in a line */
    tkc_arena arena;
    int64_t group, index, size, turns, took_ms;
    tinkc_str tag, where, error, answer, text, messages, stop;
    tinkc_i32s tokens;
    tinkc_f32s logprobs, mask;
    tinkc_i64s ends;
    double reward;
    tinkc_str metrics;
} line_read;

static tinkc_str text_or_none(tkc_json *j)
{
    return tkc_json_null(j) ? (tinkc_str){ NULL, 0 } : tkc_json_string(j);
}

static tinkc_str first_tag(tkc_json *j)
{
    tinkc_str tag = { NULL, 0 };
    if (tkc_json_array(j))
        while (tkc_json_item(j))
            tag = tkc_json_string(j);
    return tag;
}

static void read_member(line_read *l, tkc_json *j, tinkc_str key)
{
    if (tkc_str_is(key, "group_idx"))
        l->group = tkc_json_i64(j);
    else if (tkc_str_is(key, "traj_idx"))
        l->index = tkc_json_i64(j);
    else if (tkc_str_is(key, "group_size"))
        l->size = tkc_json_i64(j);
    else if (tkc_str_is(key, "tags"))
        l->tag = first_tag(j);
    else if (tkc_str_is(key, "where"))
        l->where = text_or_none(j);
    else if (tkc_str_is(key, "total_reward"))
        l->reward = tkc_json_double(j);
    else if (tkc_str_is(key, "error"))
        l->error = text_or_none(j);
    else if (tkc_str_is(key, "turns"))
        l->turns = tkc_json_i64(j);
    else if (tkc_str_is(key, "stop_reason"))
        l->stop = text_or_none(j);
    else if (tkc_str_is(key, "took_ms"))
        l->took_ms = tkc_json_i64(j);
    else if (tkc_str_is(key, "trajectory_metrics"))
        l->metrics = tkc_json_skip(j);
    else if (tkc_str_is(key, "text"))
        l->text = tkc_json_string(j);
    else if (tkc_str_is(key, "messages"))
        l->messages = tkc_json_skip(j);
    else if (tkc_str_is(key, "answer"))
        l->answer = text_or_none(j);
    else if (tkc_str_is(key, "tokens"))
        l->tokens = tkc_json_i32s(j);
    else if (tkc_str_is(key, "logprobs"))
        l->logprobs = tkc_json_f32s(j);
    else if (tkc_str_is(key, "mask"))
        l->mask = tkc_json_f32s(j);
    else if (tkc_str_is(key, "ends"))
        l->ends = tkc_json_i64s(j);
    else
        tkc_json_skip(j);
}

static bool sound(const line_read *l)
{
    size_t n = l->tokens.len;
    int64_t before = 0;
    for (size_t i = 0; i < l->ends.len; i++) {
        if (l->ends.data[i] <= before || (size_t)l->ends.data[i] > n)
            return false;
        before = l->ends.data[i];
    }
    for (size_t i = 0; i < n && i < l->mask.len && i < l->logprobs.len; i++)
        if ((l->mask.data[i] != 0 && l->mask.data[i] != 1) || !isfinite(l->logprobs.data[i]))
            return false;
    return l->logprobs.len == n && l->mask.len == n && l->group >= 0 && l->index >= 0 &&
           l->size > l->index && l->size <= 1 << 20 && (size_t)before == n && isfinite(l->reward);
}

static bool read_line(line_read *l, tinkc_str line, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    *l = (line_read){ .size = 0, .index = -1 };
    tkc_arena_init(&l->arena, NULL, 0);
    tkc_json_open(&j, line, &l->arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key))
            read_member(l, &j, key);
    tkc_json_close(&j);
    if (!tkc_failed(err) && !sound(l))
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "a recorded rollout does not fit together");
    return !tkc_failed(err);
}

static void fill_metrics(tkr_rollout *r, line_read *l, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    tkc_json_open(&j, l->metrics.data ? l->metrics : tkc_str("{}"), &l->arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            double value = tkc_json_double(&j);
            const char *name = tkc_arena_str(&l->arena, key, err);
            if (name)
                tkr_table_set(&r->metrics, name, value, err);
        }
}

static void fill_rollout(tkr_rollout *r, line_read *l, tinkc_error *err)
{
    tinkc_tokens_append(&r->tokens, l->tokens.data, l->tokens.len, err);
    tinkc_floats_append(&r->logprobs, l->logprobs.data, l->logprobs.len, err);
    tinkc_floats_append(&r->mask, l->mask.data, l->mask.len, err);
    for (size_t i = 0; i < l->mask.len; i++)
        if (l->mask.data[i] > 0)
            r->sampled++;
    r->read = l->tokens.len - r->sampled;
    r->ends = tkc_grow(NULL, NULL, &r->ends_cap, l->ends.len + 1, sizeof *r->ends, err);
    for (size_t i = 0; r->ends && i < l->ends.len; i++)
        r->ends[r->n_ends++] = (size_t)l->ends.data[i];
    fill_metrics(r, l, err);
    tinkc_text_append(&r->text, l->text.data, l->text.len, err);
    const tkc_tree *messages = l->messages.data ? tkr_json_parse(&l->arena, l->messages.data,
                                                                 l->messages.len, "messages", err)
                                                : NULL;
    r->messages = messages ? tkr_json_text(messages, err) : NULL;
    if (l->error.data)
        r->error = tkc_copy_str(NULL, l->error, err);
    r->reward = l->reward;
    r->turns = (size_t)(l->turns > 0 ? l->turns : 0);
    r->stop_reason = tkc_str_is(l->stop, "length") ? TINKC_STOP_LENGTH : TINKC_STOP;
    r->took_ms = l->took_ms;
}

static tinkc_group *group_of_line(line_read *l, tinkc_error *err)
{
    tinkc_task task = { 0 };
    if (l->answer.data)
        task.answer = tkc_arena_str(&l->arena, l->answer, err);
    if (l->where.data)
        task.where = tkc_arena_str(&l->arena, l->where, err);
    if (l->tag.data)
        task.tag = tkc_arena_str(&l->arena, l->tag, err);
    return tkc_failed(err) ? NULL : tkr_group_new(&task, (size_t)l->size, (uint64_t)l->group, err);
}

tinkc_group *tinkc_group_read(const char *text, size_t *len, tinkc_error *err)
{
    tinkc_error local;
    tinkc_group *g = NULL;
    size_t at = 0, done = 0;
    if (!tkc_enter(&err, &local))
        return NULL;
    while (!tkc_failed(err) && (!g || done < g->n)) {
        line_read l;
        const char *end = strchr(text + at, '\n');
        if (!end) {
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "a recorded group is cut off");
            break;
        }
        if (read_line(&l, (tinkc_str){ text + at, (size_t)(end - text) - at }, err) && !g)
            g = group_of_line(&l, err);
        if (g && (l.group != (int64_t)g->id || (size_t)l.index != done || (size_t)l.size != g->n))
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "a recorded group is out of order");
        if (g && !tkc_failed(err)) {
            fill_rollout(&g->all[done], &l, err);
            tkr_rollout_show(g, done++);
        }
        tkc_arena_free(&l.arena);
        at = (size_t)(end - text) + 1;
    }
    *len = at;
    if (!tkc_failed(err))
        return g;
    tinkc_group_free(g);
    return NULL;
}
