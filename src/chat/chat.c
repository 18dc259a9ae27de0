/* chat.c - conversations as text: which template, which variables, continuing the last message.
 *
 * Parsed templates are kept with their tokenizer, so each text is parsed once.
 * May touch: the template engine, the tokenizer's slot for chats.
 */
#include "chat/chat.h"

#include <string.h>

#include "base/json_read.h"
#include "base/mem.h"
#include "tokenizer/tokenizer_priv.h"

/* ---- parsed templates of a tokenizer ---- */

typedef struct kept {
    struct kept *next;
    const char *text; /* compared by address: texts of a tokenizer and of renderers never move */
    tinkc_template *t;
} kept;

typedef struct cache {
    const tinkc_allocator *a;
    kept *first;
    char *stop; /* where answers end in the model's template, if its end tokens do not tell */
    const char *stops[2];
} cache;

static void free_cache(void *value)
{
    cache *s = value;
    for (kept *k = s->first, *next; k; k = next) {
        next = k->next;
        tinkc_template_free(k->t);
        tkc_release(s->a, k, sizeof *k);
    }
    tkc_release_str(s->a, s->stop);
    tkc_release(s->a, s, sizeof *s);
}

/* Locks: needs tok->chat.lock. */
static cache *cache_of(tinkc_tokenizer *tok, tinkc_error *err)
{
    cache *s = tok->chat.value;
    if (s)
        return s;
    s = tkc_zalloc(tok->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->a = tok->a;
    tok->chat.value = s;
    tok->chat.end = free_cache;
    return s;
}

const char *const *tkc_chat_keep_stop(const tinkc_tokenizer *tok, tinkc_str stop, tinkc_error *err)
{
    /* The tokenizer is constant except for this slot, which has its own lock. */
    tinkc_tokenizer *shared = (tinkc_tokenizer *)(uintptr_t)tok;
    pthread_mutex_lock(&shared->chat.lock);
    cache *s = cache_of(shared, err);
    if (s && !s->stop) {
        s->stop = tkc_copy_str(s->a, stop, err);
        s->stops[0] = s->stop;
    }
    const char *const *list = s && s->stop ? s->stops : NULL;
    pthread_mutex_unlock(&shared->chat.lock);
    return list;
}

/* Locks: needs tok->chat.lock. */
static const tinkc_template *find_or_parse(tinkc_tokenizer *tok, tinkc_str text, tinkc_error *err)
{
    cache *s = cache_of(tok, err);
    if (!s)
        return NULL;
    for (const kept *k = s->first; k; k = k->next)
        if (k->text == text.data)
            return k->t;
    kept *k = tkc_zalloc(s->a, sizeof *k, err);
    tinkc_template *t = k ? tinkc_template_parse(text.data, text.len, s->a, err) : NULL;
    if (!t) {
        if (k)
            tkc_release(s->a, k, sizeof *k);
        return NULL;
    }
    *k = (kept){ s->first, text.data, t };
    s->first = k;
    return t;
}

static const tinkc_template *parsed(const tinkc_tokenizer *tok, tinkc_str text, tinkc_error *err)
{
    tinkc_tokenizer *shared = (tinkc_tokenizer *)(uintptr_t)tok; /* as above */
    pthread_mutex_lock(&shared->chat.lock);
    const tinkc_template *t = find_or_parse(shared, text, err);
    pthread_mutex_unlock(&shared->chat.lock);
    return t;
}

/* ---- which template ---- */

static const tkc_template_text *choose_text(const tinkc_tokenizer *tok, const tinkc_chat_options *o,
                                            bool tools, tinkc_error *err)
{
    const tkc_template_text *text;
    if (o->template_name) {
        text = tkc_find_template(tok, o->template_name);
        if (!text)
            tkc_fail(err, TINKC_E_TEMPLATE, "%s: no chat template named '%s'", tok->source,
                     o->template_name);
        return text;
    }
    text = tools ? tkc_find_template(tok, "tool_use") : NULL;
    if (!text)
        text = tkc_find_template(tok, NULL);
    if (!text && tok->n_templates == 1)
        text = &tok->templates[0];
    if (!text)
        tkc_fail(err, TINKC_E_TEMPLATE, "%s: the model has no chat template", tok->source);
    return text;
}

/* A row of training data may bring its tools: {"messages": [...], "tools": [...]}. What is not JSON
 * is left to the reader of messages. */
static bool find_tools(const char *json, const tinkc_allocator *a, tinkc_str *tools,
                       tinkc_error *err)
{
    tkc_json j;
    tkc_arena names;
    tinkc_str key;
    tinkc_error own = { 0 };
    tkc_arena_init(&names, a, 0);
    tkc_json_open(&j, tkc_str(json ? json : ""), &names, &own);
    if (tkc_json_peek(&j) == TKC_JSON_OBJECT && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            bool given = tkc_str_is(key, "tools") && tkc_json_peek(&j) != TKC_JSON_NULL;
            tinkc_str value = tkc_json_skip(&j);
            if (given)
                *tools = value;
        }
    tkc_arena_free(&names);
    if (own.code == TINKC_E_MEMORY)
        *err = own;
    return own.code != TINKC_E_MEMORY;
}

bool tkc_chat_source_of(const tinkc_tokenizer *tok, const tinkc_chat_options *o,
                        const char *messages_json, tkc_chat_source *out, tinkc_error *err)
{
    memset(out, 0, sizeof *out);
    if (o->tools_json)
        out->tools = tkc_str(o->tools_json);
    else if (!find_tools(messages_json, tok->a, &out->tools, err))
        return false;
    for (size_t i = 0; i < TKC_NAMES; i++)
        if (tok->specials[i].text)
            out->names[out->n_names++] =
                (tkc_chat_name){ tkc_special_names[i], tkc_str(tok->specials[i].text) };
    const tkc_renderer *r = o->renderer ? tkc_find_renderer(o->renderer) : NULL;
    if (o->renderer && (!r || r->unsupported))
        return tkc_fail(err, r ? TINKC_E_UNSUPPORTED : TINKC_E_ARGUMENT,
                        r ? "renderer '%s' needs a tokenizer that is not public"
                          : "no renderer named '%s'",
                        o->renderer);
    if (r) {
        out->cookbook = true;
        out->preset = r->preset;
        out->cut_system = r->cut_system;
        out->no_thinking = r->no_thinking;
    }
    if (o->chat_template) {
        out->t = o->chat_template;
        return true;
    }
    if (r && r->text) {
        out->t = parsed(tok, tkc_str(r->text), err);
        return out->t != NULL;
    }
    const tkc_template_text *text = choose_text(tok, o, out->tools.data != NULL, err);
    out->t = text ? parsed(tok, text->text, err) : NULL;
    return out->t != NULL;
}

/* ---- opening ---- */

static bool set(tkc_chat *c, tkc_jv dict, const char *name, tkc_jv value)
{
    return tkc_jdict_set(&c->reader, dict.d, tkc_jv_view(&c->reader, name, strlen(name)), value);
}

/* Variables of a renderer or the caller: an object. */
static bool merge_json(tkc_chat *c, tkc_jv into, const char *json, const char *what)
{
    if (!json)
        return true;
    tkc_jv v = tkc_jv_from_json(&c->reader, tkc_str(json), TINKC_E_ARGUMENT, what);
    if (tkc_jv_failed(v))
        return false;
    if (v.kind != TKC_JV_DICT)
        return tkc_fail(c->err, TINKC_E_ARGUMENT, "%s: an object is needed", what);
    for (size_t i = 0; i < v.d->len; i++)
        if (!tkc_jdict_set(&c->reader, into.d, v.d->entries[i].key, v.d->entries[i].value))
            return false;
    return true;
}

static bool set_list(tkc_chat *c, const char *name, tinkc_str json)
{
    tkc_jv v = tkc_jv_none;
    if (json.data) {
        v = tkc_jv_from_json(&c->reader, json, TINKC_E_ARGUMENT, name);
        if (tkc_jv_failed(v))
            return false;
        if (v.kind != TKC_JV_LIST)
            return tkc_fail(c->err, TINKC_E_ARGUMENT, "%s: an array is needed", name);
    }
    return set(c, c->base, name, v);
}

static bool has_type(tkc_chat *c, tkc_jv part, const char *type)
{
    const tkc_jv *v =
        part.kind == TKC_JV_DICT ? tkc_jdict_str(&c->reader, part.d, tkc_str("type")) : NULL;
    return v && v->kind == TKC_JV_STR && tkc_str_is(tkc_jv_text(*v), type);
}

/* The texts of all parts of a type, joined. */
static tkc_jv joined_parts(tkc_chat *c, tkc_jv parts, const char *type)
{
    tkc_jv out = tkc_jv_view(&c->reader, "", 0);
    for (size_t i = 0; !tkc_jv_failed(out) && i < parts.l->len; i++) {
        if (!has_type(c, parts.l->items[i], type))
            continue;
        const tkc_jv *text = tkc_jdict_str(&c->reader, parts.l->items[i].d, tkc_str(type));
        if (text && text->kind == TKC_JV_STR)
            out = tkc_j_binary(&c->reader, TKC_JOP_ADD, out, *text);
    }
    return out;
}

static tkc_jv copy_dict(tkc_chat *c, tkc_jv from);

/* The cookbook keeps reasoning as parts of the content; templates expect a separate field. */
static bool unfold_thinking(tkc_chat *c, tkc_jv *message)
{
    const tkc_jv *content = tkc_jdict_str(&c->reader, message->d, tkc_str("content"));
    size_t thinking = 0, text = 0;
    for (size_t i = 0; content && content->kind == TKC_JV_LIST && i < content->l->len; i++) {
        thinking += has_type(c, content->l->items[i], "thinking");
        text += has_type(c, content->l->items[i], "text");
    }
    if (thinking == 0 || thinking + text < content->l->len)
        return true;
    tkc_jv parts = *content, copy = copy_dict(c, *message);
    tkc_jv thought = joined_parts(c, parts, "thinking"), said = joined_parts(c, parts, "text");
    if (tkc_jv_failed(copy) || tkc_jv_failed(thought) || tkc_jv_failed(said) ||
        !set(c, copy, "content", said) || !set(c, copy, "reasoning_content", thought))
        return false;
    *message = copy;
    return true;
}

static bool read_messages(tkc_chat *c, const char *json)
{
    tkc_jv v = tkc_jv_from_json(&c->reader, tkc_str(json), TINKC_E_ARGUMENT, "messages");
    if (tkc_jv_failed(v))
        return false;
    if (v.kind == TKC_JV_DICT) {
        const tkc_jv *inner = tkc_jdict_str(&c->reader, v.d, tkc_str("messages"));
        v = inner ? *inner : tkc_jv_none;
    }
    if (v.kind != TKC_JV_LIST)
        return tkc_fail(c->err, TINKC_E_ARGUMENT, "messages: an array of messages is needed");
    if (v.l->len == 0)
        return tkc_fail(c->err, TINKC_E_ARGUMENT, "messages: the conversation is empty");
    for (size_t i = 0; i < v.l->len; i++)
        if (v.l->items[i].kind != TKC_JV_DICT)
            return tkc_fail(c->err, TINKC_E_ARGUMENT, "messages: message %zu is not an object", i);
    for (size_t i = 0; c->source->cookbook && i < v.l->len; i++)
        if (!unfold_thinking(c, &v.l->items[i]))
            return false;
    c->messages = v;
    return true;
}

bool tkc_chat_open(tkc_chat *c, const tkc_chat_source *source, const char *messages_json,
                   const tinkc_chat_options *o, tinkc_error *err)
{
    static const tinkc_chat_options none = { 0 };
    o = o ? o : &none;
    memset(c, 0, sizeof *c);
    c->source = source;
    c->err = err;
    c->limits = (tkc_jlimits){ o->max_bytes, o->max_steps, o->now_us, 0 };
    tkc_arena_init(&c->arena, source->t->a, 0);
    tkc_arena_init(&c->scratch, source->t->a, 0);
    tkc_arena_init(&c->brief, source->t->a, 0);
    tkc_jev_init(&c->reader, &source->t->jinja, &c->arena, &c->limits, err);
    c->reader.steps_left = INT64_MAX; /* the caller's data is not charged to the template */
    c->reader.mem_left = SIZE_MAX;
    c->base = tkc_jv_dict(&c->reader, TKC_JV_DICT);
    c->wins = tkc_jv_dict(&c->reader, TKC_JV_DICT);
    if (tkc_jv_failed(c->base) || tkc_jv_failed(c->wins) || !read_messages(c, messages_json) ||
        !set_list(c, "tools", o->tools_json ? tkc_str(o->tools_json) : source->tools) ||
        !set_list(c, "documents",
                  o->documents_json ? tkc_str(o->documents_json) : (tinkc_str){ 0 }))
        return false;
    for (size_t i = 0; i < source->n_names; i++) {
        tinkc_str text = source->names[i].text;
        if (!set(c, c->base, source->names[i].name, tkc_jv_view(&c->reader, text.data, text.len)))
            return false;
    }
    return merge_json(c, c->wins, source->preset, "renderer") &&
           merge_json(c, c->wins, o->variables_json, "variables") &&
           (!o->openai_calls || tkc_chat_adapt(c));
}

void tkc_chat_close(tkc_chat *c)
{
    tkc_jev_free(&c->reader);
    tkc_arena_free(&c->scratch);
    tkc_arena_free(&c->brief);
    tkc_arena_free(&c->arena);
}

tkc_jv tkc_chat_first(tkc_chat *c, size_t n)
{
    tkc_jlist *l = tkc_arena_alloc(&c->arena, sizeof *l, c->err);
    if (!l)
        return tkc_jv_fail;
    *l = (tkc_jlist){ c->messages.l->items, n, n };
    return (tkc_jv){ .kind = TKC_JV_LIST, .l = l };
}

tinkc_str tkc_chat_field(tkc_chat *c, size_t i, const char *key)
{
    const tkc_jv *v = tkc_jdict_str(&c->reader, c->messages.l->items[i].d, tkc_str(key));
    return v && v->kind == TKC_JV_STR ? tkc_jv_text(*v) : (tinkc_str){ 0 };
}

/* ---- rendering ---- */

/* messages, tools, documents, add_generation_prompt, special tokens; then what overrides them. */
static bool variables(tkc_chat *c, tkc_jev *ev, tkc_jv messages, bool generation_prompt,
                      tkc_jv *out)
{
    static tkc_jstr names[2] = { { "messages", 8, 8 }, { "add_generation_prompt", 21, 21 } };
    *out = tkc_jv_dict(ev, TKC_JV_DICT);
    if (tkc_jv_failed(*out) ||
        !tkc_jdict_set(ev, out->d, (tkc_jv){ .kind = TKC_JV_STR, .s = &names[0] }, messages) ||
        !tkc_jdict_set(ev, out->d, (tkc_jv){ .kind = TKC_JV_STR, .s = &names[1] },
                       tkc_jv_bool(generation_prompt)))
        return false;
    const tkc_jdict *parts[2] = { c->base.d, c->wins.d };
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < parts[k]->len; i++)
            if (!tkc_jdict_set(ev, out->d, parts[k]->entries[i].key, parts[k]->entries[i].value))
                return false;
    return true;
}

/* Where the system message that the template adds by itself ends; 0 = there is none. */
static size_t made_up_system(tinkc_str text)
{
    static const char begin[] = "<|start|>system<|message|>", end[] = "<|end|>";
    const char *hit =
        tkc_starts_with(text, begin) ? memmem(text.data, text.len, end, sizeof end - 1) : NULL;
    return hit ? (size_t)(hit - text.data) + sizeof end - 1 : 0;
}

static bool keep_result(tkc_chat *c, const tkc_jev *ev, tkc_rendered *out, tinkc_error *err)
{
    tinkc_str text = { ev->out.data ? ev->out.data : "", ev->out.len };
    size_t cut = c->source->cut_system ? made_up_system(text) : 0;
    tkc_arena *arena = c->keep_briefly ? &c->brief : &c->arena;
    char *copy = tkc_arena_str(arena, tkc_strn(text.data + cut, text.len - cut), err);
    tkc_jspan *spans = tkc_arena_array(arena, ev->n_spans + 1, sizeof *spans, err);
    if (!copy || !spans)
        return false;
    for (size_t i = 0; i < ev->n_spans; i++)
        spans[i] = (tkc_jspan){ ev->spans[i].begin - cut, ev->spans[i].end - cut };
    *out = (tkc_rendered){ { copy, text.len - cut }, spans, ev->n_spans, ev->nested_spans };
    return true;
}

bool tkc_chat_run(tkc_chat *c, tkc_jv messages, bool generation_prompt, tkc_rendered *out,
                  tinkc_error *err)
{
    tkc_jev ev;
    tkc_jv vars;
    memset(out, 0, sizeof *out);
    if (tkc_jv_failed(messages))
        return false;
    tkc_jev_init(&ev, &c->source->t->jinja, &c->scratch, &c->limits, err);
    ev.seed = c->reader.seed; /* the hash tables inside the messages were built with it */
    bool ok = variables(c, &ev, messages, generation_prompt, &vars) && tkc_jev_run(&ev, vars.d) &&
              keep_result(c, &ev, out, err);
    tkc_jev_free(&ev);
    tkc_arena_reset(&c->scratch);
    return ok;
}

/* ---- continuing the last message ---- */

static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

static tkc_jv copy_dict(tkc_chat *c, tkc_jv from)
{
    tkc_jv d = tkc_jv_dict(&c->reader, TKC_JV_DICT);
    for (size_t i = 0; !tkc_jv_failed(d) && i < from.d->len; i++)
        if (!tkc_jdict_set(&c->reader, d.d, from.d->entries[i].key, from.d->entries[i].value))
            return tkc_jv_fail;
    return d;
}

static tkc_jv tagged(tkc_chat *c, tkc_jv text)
{
    return tkc_j_binary(&c->reader, TKC_JOP_ADD, text,
                        tkc_jv_view(&c->reader, tag, sizeof tag - 1));
}

/* A copy of a list of parts in which the last one with text has the tag; *text is what it had. */
static tkc_jv tag_parts(tkc_chat *c, tkc_jv parts, tkc_jv *text)
{
    tkc_jv out = tkc_j_list(&c->reader, parts, TKC_JV_LIST);
    for (size_t i = tkc_jv_failed(out) ? 0 : out.l->len; i-- > 0;) {
        if (out.l->items[i].kind != TKC_JV_DICT)
            continue;
        const tkc_jv *v = tkc_jdict_str(&c->reader, out.l->items[i].d, tkc_str("text"));
        if (!v || v->kind != TKC_JV_STR)
            continue;
        *text = *v;
        tkc_jv part = copy_dict(c, out.l->items[i]);
        if (tkc_jv_failed(part) || !set(c, part, "text", tagged(c, *v)))
            return tkc_jv_fail;
        out.l->items[i] = part;
        return out;
    }
    tkc_fail(c->err, TINKC_E_ARGUMENT, "messages: the last one has no text to continue");
    return tkc_jv_fail;
}

/* The messages with the tag appended to a field of the last one. */
static tkc_jv tag_messages(tkc_chat *c, const char *field, tkc_jv *text)
{
    tkc_jv out = tkc_j_list(&c->reader, c->messages, TKC_JV_LIST);
    if (tkc_jv_failed(out))
        return out;
    tkc_jv *last = &out.l->items[out.l->len - 1];
    const tkc_jv *v = tkc_jdict_str(&c->reader, last->d, tkc_str(field));
    tkc_jv value = tkc_jv_fail;
    if (v && v->kind == TKC_JV_STR) {
        *text = *v;
        value = tagged(c, *v);
    } else if (v && v->kind == TKC_JV_LIST) {
        value = tag_parts(c, *v, text);
    } else {
        tkc_fail(c->err, TINKC_E_ARGUMENT, "messages: the last one has no '%s' to continue", field);
    }
    tkc_jv copy = tkc_jv_failed(value) ? value : copy_dict(c, *last);
    if (tkc_jv_failed(copy) || !set(c, copy, field, value))
        return tkc_jv_fail;
    *last = copy;
    return out;
}

static bool contains(tinkc_str s, tinkc_str part)
{
    return part.len == 0 || memmem(s.data, s.len, part.data, part.len) != NULL;
}

static bool run_continued(tkc_chat *c, const char *field, tkc_rendered *out)
{
    tkc_jv text = tkc_jv_none;
    if (!contains(c->source->t->jinja.text, tkc_str(field)))
        return tkc_fail(c->err, TINKC_E_TEMPLATE, "the template does not use '%s'", field);
    tkc_jv messages = tag_messages(c, field, &text);
    if (tkc_jv_failed(messages) || !tkc_chat_run(c, messages, false, out, c->err))
        return false;
    tinkc_str stripped = { tag, sizeof tag - 2 }, s = out->text;
    size_t at = s.len;
    for (size_t i = s.len >= stripped.len ? s.len - stripped.len + 1 : 0; i-- > 0;)
        if (memcmp(s.data + i, stripped.data, stripped.len) == 0) {
            at = i;
            break;
        }
    if (at == s.len || !contains(s, tkc_j_strip(tkc_jv_text(text), NULL, true, true)))
        return tkc_fail(c->err, TINKC_E_TEMPLATE,
                        "the template changes the text of the last message, so it cannot be "
                        "continued");
    bool whole = s.len - at >= sizeof tag - 1 && memcmp(s.data + at, tag, sizeof tag - 1) == 0;
    s.len = at;
    out->text = whole ? s : tkc_j_strip(s, NULL, false, true);
    return true;
}

bool tkc_chat_text(const tkc_chat_source *source, const char *messages_json,
                   const tinkc_chat_options *o, tinkc_text *out, tinkc_error *err)
{
    tkc_chat c;
    tkc_rendered r;
    if (o && o->continue_field && o->generation_prompt)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "chat: continue_field and generation_prompt exclude each other");
    bool ok = tkc_chat_open(&c, source, messages_json, o, err) &&
              (o && o->continue_field
                   ? run_continued(&c, o->continue_field, &r)
                   : tkc_chat_run(&c, c.messages, o && o->generation_prompt, &r, err)) &&
              tinkc_text_append(out, r.text.data, r.text.len, err);
    tkc_chat_close(&c);
    return ok;
}

/* ---- public ---- */

bool tkc_chat_check(const tinkc_tokenizer *tok, const char *messages_json,
                    const tinkc_chat_options *o, const void *out, const char *what,
                    tinkc_error *err)
{
    if (!tok || !messages_json || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: %s is NULL", what,
                        !tok             ? "tokenizer"
                        : !messages_json ? "messages"
                                         : "out");
    if (o && (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
              !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: a reserved field is not zero", what);
    if (o && (o->max_bytes < 0 || o->max_steps < 0))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: a limit is negative", what);
    return true;
}

bool tinkc_chat_render(const tinkc_tokenizer *tok, const char *messages_json,
                       const tinkc_chat_options *options, tinkc_text *out, tinkc_error *err)
{
    static const tinkc_chat_options none = { 0 };
    tinkc_error local;
    tkc_chat_source source;
    if (!tkc_enter(&err, &local) ||
        !tkc_chat_check(tok, messages_json, options, out, "chat_render", err))
        return false;
    return tkc_chat_source_of(tok, options ? options : &none, messages_json, &source, err) &&
           tkc_chat_text(&source, messages_json, options, out, err);
}

bool tinkc_chat_encode(const tinkc_tokenizer *tok, const char *messages_json,
                       const tinkc_chat_options *options, tinkc_tokens *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) ||
        !tkc_chat_check(tok, messages_json, options, out, "chat_encode", err))
        return false;
    tinkc_text text = { .a = tok->a };
    bool ok = tinkc_chat_render(tok, messages_json, options, &text, err) &&
              tinkc_encode_span(tok, text.data ? text.data : "", text.len, NULL, out, NULL, err);
    tinkc_text_free(&text);
    return ok;
}
