/* chat_train.c - the training view of a conversation: which tokens belong to which message.
 *
 * A message is rendered as a header, then its output: the content and the end mark. Only outputs
 * are trained. Their place in the rendered text is found by the first of these that works, and each
 * result is checked against the text of the whole conversation:
 *
 *   1. generation blocks: the template marks the output (less what the generation prompt supplies);
 *   2. prefixes: the conversation before the message with the generation prompt, and the
 *      conversation including the message, are both prefixes of the whole text;
 *   3. probing: the message is rendered again with a mark in place of its content. Text before and
 *      after the mark that stays the same is not the message's own. The header is recognised by the
 *      generation prompt, the end by what the template writes when the message is the last one.
 *
 * What cannot be found is TINKC_E_UNSUPPORTED, never guessed. May touch: chat.h, the encoder.
 */
#include <string.h>

#include "base/mem.h"
#include "chat/chat.h"
#include "tokenizer/tokenizer_priv.h"

/* Private-use characters: conversations do not contain them, and templates pass them through. */
static const char mark[] = "\xEF\xA3\xB0tinkc\xEF\xA3\xB1";

/* The beginning of the conversation is rendered again for each answer, so the work grows with the
 * square of its length. This many bytes take some seconds: far more than a conversation needs that fits
 * into a model's context, and not a minute. */
#ifndef TKC_TRAIN_RENDER_MAX
#define TKC_TRAIN_RENDER_MAX ((size_t)512 << 20)
#endif

typedef struct view {
    const tinkc_tokenizer *tok;
    const tinkc_chat_options *o;
    tinkc_error *err;
    tkc_chat chat;
    bool *chosen; /* for each message of the conversation */
    /* of the current example */
    size_t n;
    tkc_rendered whole;
    tkc_jspan *spans;
    size_t n_spans;
    tinkc_str prompt; /* the text that the generation prompt adds; data NULL = not known yet */
    size_t rendered;  /* bytes so far, to find messages */
} view;

/* ---- small tools ---- */

static bool begins_with(tinkc_str s, tinkc_str prefix)
{
    return s.len >= prefix.len && memcmp(s.data, prefix.data, prefix.len) == 0;
}

static size_t common_prefix(tinkc_str a, tinkc_str b)
{
    size_t n = a.len < b.len ? a.len : b.len, i = 0;
    while (i < n && a.data[i] == b.data[i])
        i++;
    while (i > 0 && i < a.len && ((unsigned char)a.data[i] & 0xC0) == 0x80)
        i--; /* not inside a character */
    return i;
}

static size_t common_suffix(tinkc_str a, tinkc_str b, size_t most)
{
    size_t i = 0;
    while (i < most && i < a.len && i < b.len && a.data[a.len - 1 - i] == b.data[b.len - 1 - i])
        i++;
    while (i > 0 && ((unsigned char)a.data[a.len - i] & 0xC0) == 0x80)
        i--;
    return i;
}

/* A rendering that the template may reject: that is a result, not a failure. */
static bool try_render(view *v, tkc_jv messages, bool generation_prompt, tkc_rendered *out)
{
    tinkc_error inner = { 0 };
    if (tkc_failed(v->err))
        return false;
    if (tkc_chat_run(&v->chat, messages, generation_prompt, out, &inner)) {
        v->rendered += out->text.len;
        return v->rendered <= TKC_TRAIN_RENDER_MAX ||
               tkc_fail(v->err, TINKC_E_ARGUMENT,
                        "messages: %zu of them take too long to tell what is learnt (over %zu MiB "
                        "of renderings): split the conversation into shorter ones",
                        v->chat.messages.l->len, TKC_TRAIN_RENDER_MAX >> 20);
    }
    if (inner.code != TINKC_E_TEMPLATE)
        tkc_error_copy(v->err, &inner);
    return false;
}

static bool is_role(view *v, size_t i, const char *role)
{
    return tkc_str_is(tkc_chat_field(&v->chat, i, "role"), role);
}

/* Whether s ends with a token of this kind. */
static bool ends_with_token(const tinkc_tokenizer *tok, tinkc_str s, bool special_only)
{
    for (size_t i = 0; i < tok->n_added; i++) {
        const tkc_added_token *t = &tok->added[i];
        if (t->len && t->len <= s.len && (t->special || !special_only) &&
            s.data[s.len - 1] == t->text[t->len - 1] &&
            memcmp(s.data + s.len - t->len, t->text, t->len) == 0)
            return true;
    }
    return false;
}

/* White space after the end mark is not part of the message: "<|im_end|>\n" ends at ">". */
static size_t without_tail(const view *v, size_t begin, size_t end)
{
    tinkc_str s = { v->whole.text.data + begin, end - begin };
    tinkc_str cut = tkc_j_strip(s, NULL, false, true);
    return cut.len && ends_with_token(v->tok, cut, true) ? begin + cut.len : end;
}

/* ---- finding a message: prefixes ---- */

/* The longest run of whole tokens of s that fits into `most` bytes. */
static size_t whole_tokens(view *v, tinkc_str s, size_t most)
{
    tinkc_tokens ids = { .a = v->tok->a };
    tinkc_sizes places = { .a = v->tok->a };
    size_t fit = 0;
    if (tinkc_encode_span(v->tok, s.data, s.len, NULL, &ids, &places, v->err))
        for (size_t i = 0; i + 1 < places.len; i += 2)
            if (places.data[i + 1] <= most && places.data[i + 1] > fit)
                fit = places.data[i + 1];
    tinkc_tokens_free(&ids);
    tinkc_sizes_free(&places);
    return fit;
}

/* The text that the generation prompt adds after messages; may be empty. Without the prompt the
 * template may write an end mark instead: the prompt then begins where the two texts differ. */
static bool find_prompt(view *v, tkc_jv before, const tkc_rendered *with, tinkc_str *out)
{
    tkc_rendered without;
    *out = (tinkc_str){ 0 };
    if (!try_render(v, before, false, &without))
        return false;
    size_t same = common_prefix(with->text, without.text);
    if (same < without.text.len)
        same = whole_tokens(v, with->text, same);
    *out = tkc_strn(with->text.data + same, with->text.len - same);
    return same > 0;
}

/* Where the last message ends: some templates append a mark of their own to the conversation unless
 * there is a generation prompt. That mark is left out only if the rest still ends with an end
 * mark. */
static size_t own_end(view *v, size_t begin, size_t end)
{
    tkc_rendered asked;
    if (!try_render(v, tkc_chat_first(&v->chat, v->n), true, &asked))
        return end;
    size_t same = common_prefix(v->whole.text, asked.text);
    if (same >= end || (same = whole_tokens(v, v->whole.text, same)) < begin)
        return end;
    tinkc_str own =
        tkc_j_strip(tkc_strn(v->whole.text.data + begin, same - begin), NULL, false, true);
    return own.len && ends_with_token(v->tok, own, true) ? same : end;
}

static bool by_prefixes(view *v, size_t k, tkc_jspan *span)
{
    tkc_rendered with, upto = v->whole;
    tkc_jv before = tkc_chat_first(&v->chat, k);
    if (k == 0 || !is_role(v, k, "assistant") || !try_render(v, before, true, &with) ||
        !begins_with(v->whole.text, with.text))
        return false;
    if (!v->prompt.data && !find_prompt(v, before, &with, &v->prompt))
        return false;
    if (v->prompt.len == 0)
        return false; /* the template has no prompt, so the header would count as output */
    if (k + 1 < v->n && !try_render(v, tkc_chat_first(&v->chat, k + 1), false, &upto))
        return false;
    if (!begins_with(v->whole.text, upto.text) || upto.text.len < with.text.len)
        return false;
    if (k + 1 == v->n)
        upto.text.len = own_end(v, with.text.len, upto.text.len);
    *span = (tkc_jspan){ with.text.len, without_tail(v, with.text.len, upto.text.len) };
    return true;
}

/* ---- finding a message: probing ---- */

static bool is_content_key(tinkc_str key)
{
    static const char *const keys[] = { "content", "reasoning_content", "reasoning", "thinking",
                                        "tool_calls" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (tkc_str_is(key, keys[i]))
            return true;
    return false;
}

static tkc_jv text_of(view *v, const char *text)
{
    return tkc_jv_view(&v->chat.reader, text, strlen(text));
}

static bool set(view *v, tkc_jv dict, const char *key, tkc_jv value)
{
    return tkc_jdict_set(&v->chat.reader, dict.d, text_of(v, key), value);
}

/* The mark in the form that the message's content has: text, or a list of parts. */
static tkc_jv marked_content(view *v, const tkc_jv *content)
{
    tkc_jev *ev = &v->chat.reader;
    if (!content || content->kind != TKC_JV_LIST)
        return text_of(v, mark);
    tkc_jv list = tkc_jv_list(ev, TKC_JV_LIST, 1), part = tkc_jv_dict(ev, TKC_JV_DICT);
    if (tkc_jv_failed(list) || tkc_jv_failed(part) || !set(v, part, "type", text_of(v, "text")) ||
        !set(v, part, "text", text_of(v, mark)) || !tkc_jv_push(ev, list.l, part))
        return tkc_jv_fail;
    return list;
}

/* The first n messages with the mark in place of what message k says. */
static tkc_jv with_mark(view *v, size_t k, size_t n)
{
    tkc_jev *ev = &v->chat.reader;
    tkc_jv list = tkc_j_list(ev, tkc_chat_first(&v->chat, n), TKC_JV_LIST);
    tkc_jv message = tkc_jv_failed(list) ? list : tkc_jv_dict(ev, TKC_JV_DICT);
    if (tkc_jv_failed(message))
        return message;
    const tkc_jdict *from = v->chat.messages.l->items[k].d;
    for (size_t i = 0; i < from->len; i++) {
        tkc_jv key = from->entries[i].key;
        bool content = tkc_str_is(tkc_jv_text(key), "content");
        tkc_jv value =
            content ? marked_content(v, &from->entries[i].value) : from->entries[i].value;
        if ((content || !is_content_key(tkc_jv_text(key))) &&
            !tkc_jdict_set(ev, message.d, key, value))
            return tkc_jv_fail;
    }
    if (!tkc_jdict_str(ev, message.d, tkc_str("content")) &&
        !set(v, message, "content", marked_content(v, NULL)))
        return tkc_jv_fail;
    list.l->items[k] = message;
    return list;
}

/* Where the mark is, if it occurs exactly once. */
static bool find_mark(tinkc_str text, size_t *at)
{
    size_t n = sizeof mark - 1;
    const char *hit = text.len ? memmem(text.data, text.len, mark, n) : NULL;
    if (!hit)
        return false;
    *at = (size_t)(hit - text.data);
    return memmem(hit + n, text.len - *at - n, mark, n) == NULL;
}

/* The end of the special token at the beginning of s, after white space; 0 = none. */
static size_t first_mark(const view *v, tinkc_str s)
{
    size_t skip = s.len - tkc_j_strip(s, NULL, true, false).len;
    for (size_t n = skip + 1; n <= s.len && n <= skip + 64; n++)
        if (ends_with_token(v->tok, tkc_strn(s.data + skip, n - skip), true))
            return n;
    return 0;
}

/* How much of the text after the content belongs to the message's end: what the template also
 * writes when the message is the last. If it then writes another mark (<|return|> for <|end|>), the
 * mark found here is used. */
static size_t end_of_message(view *v, size_t k, size_t content_end)
{
    tinkc_str tail = tkc_strn(v->whole.text.data + content_end, v->whole.text.len - content_end);
    tkc_rendered alone;
    size_t at, own = tail.len;
    if (k + 1 < v->n) {
        own = 0;
        if (try_render(v, with_mark(v, k, k + 1), false, &alone) && find_mark(alone.text, &at)) {
            size_t behind = at + sizeof mark - 1;
            tinkc_str other = tkc_strn(alone.text.data + behind, alone.text.len - behind);
            own = common_prefix(tail, other);
            if (own < other.len)
                own = first_mark(v, other) ? first_mark(v, tail) : whole_tokens(v, other, own);
        }
    }
    return without_tail(v, content_end, content_end + own);
}

static bool begins_with_token(const tinkc_tokenizer *tok, tinkc_str s)
{
    for (size_t i = 0; i < tok->n_added; i++)
        if (tok->added[i].len && tok->added[i].len <= s.len &&
            memcmp(s.data, tok->added[i].text, tok->added[i].len) == 0)
            return true;
    return false;
}

/* How many of the first n bytes of the prompt may count as a header: all of the prompt; or whole
 * tokens that include a mark, if the part left out begins with another mark (an open <think>). */
static size_t part_of_prompt(view *v, tinkc_str prompt, size_t n)
{
    if (n >= prompt.len)
        return prompt.len;
    size_t whole = whole_tokens(v, prompt, n);
    bool marked = false;
    for (size_t i = 1; i <= whole && !marked; i++)
        marked = ends_with_token(v->tok, tkc_strn(prompt.data, i), false);
    tinkc_str rest =
        tkc_j_strip(tkc_strn(prompt.data + whole, prompt.len - whole), NULL, true, false);
    return marked && (rest.len == 0 || begins_with_token(v->tok, rest)) ? whole : 0;
}

static bool has_word(tinkc_str s)
{
    size_t letters = 0;
    for (size_t i = 0; i < s.len; i++)
        letters += (s.data[i] | 0x20) >= 'a' && (s.data[i] | 0x20) <= 'z';
    return letters >= 2;
}

/* Looks for a generation prompt, or its beginning, right before the content. */
static bool find_prompt_before(view *v, tinkc_str prompt, size_t content, size_t *start)
{
    tinkc_str text = v->whole.text;
    size_t reach = prompt.len + 64, best = 0, place = 0;
    for (size_t at = content > reach ? content - reach : 0; at <= content && at < text.len; at++) {
        size_t n = common_prefix(tkc_strn(text.data + at, text.len - at), prompt);
        if (n && n >= best) {
            best = n;
            place = at;
        }
    }
    /* a prefix that ends exactly at the content is the header, if it contains a word */
    bool exact = place + best == content && has_word(tkc_strn(prompt.data, best));
    size_t part = exact ? best : part_of_prompt(v, prompt, best);
    *start = place + part;
    return part > 0;
}

static bool find_header(view *v, size_t content, size_t *start)
{
    /* some templates write a newline before the prompt but not between messages */
    return find_prompt_before(v, v->prompt, content, start) ||
           find_prompt_before(v, tkc_j_strip(v->prompt, NULL, true, false), content, start);
}

/* Sets v->prompt if it is not known yet, by rendering some conversation. */
static bool learn_prompt(view *v, size_t k)
{
    tkc_rendered with;
    tkc_jev *ev = &v->chat.reader;
    if (v->prompt.data)
        return true;
    tkc_jv before = tkc_chat_first(&v->chat, k);
    if (k > 0 && try_render(v, before, true, &with) && find_prompt(v, before, &with, &v->prompt))
        return true;
    tkc_jv list = tkc_jv_list(ev, TKC_JV_LIST, 1), user = tkc_jv_dict(ev, TKC_JV_DICT);
    if (tkc_jv_failed(list) || tkc_jv_failed(user) || !set(v, user, "role", text_of(v, "user")) ||
        !set(v, user, "content", text_of(v, "x")) || !tkc_jv_push(ev, list.l, user))
        return false;
    return try_render(v, list, true, &with) && find_prompt(v, list, &with, &v->prompt);
}

static bool find_start(view *v, size_t k, size_t content, size_t *start)
{
    tkc_rendered with;
    *start = content;
    if (!is_role(v, k, "assistant"))
        return true;
    if (!learn_prompt(v, k))
        return false;
    if (v->prompt.len == 0)
        return true;
    if (k > 0 && try_render(v, tkc_chat_first(&v->chat, k), true, &with) &&
        begins_with(v->whole.text, with.text)) {
        *start = with.text.len;
        return true;
    }
    return find_header(v, content, start);
}

static bool by_probing(view *v, size_t k, tkc_jspan *span)
{
    tkc_rendered probe;
    size_t at, start;
    tinkc_str text = v->whole.text;
    if (!try_render(v, with_mark(v, k, v->n), false, &probe) || !find_mark(probe.text, &at))
        return false;
    size_t before = common_prefix(text, tkc_strn(probe.text.data, at));
    size_t behind = probe.text.len - at - (sizeof mark - 1);
    size_t most = behind < text.len - before ? behind : text.len - before;
    size_t content_end = text.len - common_suffix(text, probe.text, most);
    if (!find_start(v, k, before, &start))
        return false;
    size_t end = end_of_message(v, k, content_end);
    if (start > end)
        return false;
    *span = (tkc_jspan){ start, end };
    return true;
}

/* ---- an example ---- */

/* Generation blocks, if there is one for each message or for each assistant message. */
static bool by_blocks(view *v, size_t k, tkc_jspan *span)
{
    size_t answers = 0, index = 0;
    const tkc_rendered *w = &v->whole;
    if (!v->chat.source->t->jinja.has_generation || w->nested_spans)
        return false;
    for (size_t i = 0; i < v->n; i++) {
        if (i == k)
            index = answers;
        answers += is_role(v, i, "assistant");
    }
    if (w->n_spans == v->n)
        index = k;
    else if (w->n_spans != answers || !is_role(v, k, "assistant"))
        return false;
    *span = w->spans[index];
    if (is_role(v, k, "assistant") && learn_prompt(v, k) && v->prompt.len) {
        tinkc_str text = tkc_strn(w->text.data + span->begin, span->end - span->begin);
        span->begin += part_of_prompt(v, v->prompt, common_prefix(text, v->prompt));
    }
    span->end = without_tail(v, span->begin, span->end);
    return true;
}

/* The renderings that find a message are not needed after it; the prompt is. */
static bool find_message(view *v, size_t k, tkc_jspan *span)
{
    const char *prompt = v->prompt.data;
    v->chat.keep_briefly = true;
    bool found = by_blocks(v, k, span) || by_prefixes(v, k, span) || by_probing(v, k, span);
    v->chat.keep_briefly = false;
    if (v->prompt.data != prompt)
        v->prompt.data = tkc_arena_str(&v->chat.arena, v->prompt, v->err);
    tkc_arena_reset(&v->chat.brief);
    return found;
}

static bool locate(view *v, size_t k)
{
    tkc_jspan span;
    if (!find_message(v, k, &span)) {
        return tkc_fail(v->err, TINKC_E_UNSUPPORTED,
                        "chat: the template does not tell which tokens are those of message %zu",
                        k);
    }
    if (tkc_failed(v->err))
        return false;
    if (v->n_spans && span.begin < v->spans[v->n_spans - 1].end)
        return tkc_fail(v->err, TINKC_E_UNSUPPORTED,
                        "chat: the template writes messages %zu and earlier into each other", k);
    v->spans[v->n_spans++] = span;
    return true;
}

static bool append_weight(tinkc_floats *weights, float w, size_t n, tinkc_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!tinkc_floats_append(weights, &w, 1, err))
            return false;
    return true;
}

/* Whether the beginning or the end of a span cuts a token. */
static bool cuts_token(const view *v, const tinkc_sizes *places)
{
    size_t k = 0;
    for (size_t i = 0; i + 1 < places->len; i += 2) {
        size_t begin = places->data[i], end = places->data[i + 1];
        while (k < v->n_spans && v->spans[k].end <= begin)
            k++;
        for (size_t m = k; m < v->n_spans && v->spans[m].begin < end; m++)
            if ((begin < v->spans[m].begin && v->spans[m].begin < end) ||
                (begin < v->spans[m].end && v->spans[m].end < end))
                return true;
    }
    return false;
}

/* The usual case: the text is encoded whole, as it is for sampling. */
static bool weigh_tokens(const view *v, const tinkc_sizes *places, tinkc_floats *weights)
{
    size_t k = 0;
    for (size_t i = 0; i + 1 < places->len; i += 2) {
        while (k < v->n_spans && v->spans[k].end <= places->data[i])
            k++;
        bool inside = k < v->n_spans && places->data[i] >= v->spans[k].begin;
        if (!append_weight(weights, inside ? 1.0f : 0.0f, 1, v->err))
            return false;
    }
    return true;
}

/* For when a token would cross an edge: sampling never produces it, because the prompt ends
 * there. */
static bool encode_parts(view *v, tinkc_tokens *out, tinkc_floats *weights)
{
    size_t at = 0;
    for (size_t k = 0; k <= v->n_spans; k++) {
        size_t edges[2] = { k < v->n_spans ? v->spans[k].begin : v->whole.text.len,
                            k < v->n_spans ? v->spans[k].end : v->whole.text.len };
        for (int e = 0; e < 2; e++) {
            size_t before = out->len;
            if (edges[e] > at && !tinkc_encode_span(v->tok, v->whole.text.data + at, edges[e] - at,
                                                    NULL, out, NULL, v->err))
                return false;
            if (!append_weight(weights, (float)e, out->len - before, v->err))
                return false;
            at = edges[e];
        }
    }
    return true;
}

static bool encode_example(view *v, tinkc_tokens *out, tinkc_floats *weights)
{
    tinkc_sizes places = { .a = v->tok->a };
    size_t first = out->len, first_weight = weights->len;
    tinkc_str text = v->whole.text;
    bool ok = tinkc_encode_span(v->tok, text.data, text.len, NULL, out, &places, v->err);
    if (ok && cuts_token(v, &places)) {
        out->len = first;
        ok = encode_parts(v, out, weights);
    } else if (ok) {
        ok = weigh_tokens(v, &places, weights);
    }
    tinkc_sizes_free(&places);
    int32_t bos = tinkc_tokenizer_special(v->tok, TINKC_TOKEN_BOS);
    if (ok && bos >= 0 && out->len > first && out->data[first] == bos)
        weights->data[first_weight] = 0.0f;
    return ok;
}

/* An example of the first n messages; the chosen ones from `from` on are trained. */
static bool add_example(view *v, size_t n, size_t from, tinkc_tokens *out, tinkc_floats *weights,
                        tinkc_sizes *ends)
{
    v->n = n;
    v->n_spans = 0;
    if (!tkc_chat_run(&v->chat, tkc_chat_first(&v->chat, n), false, &v->whole, v->err))
        return false;
    if (v->o->train_on == TINKC_TRAIN_ALL_TOKENS)
        v->spans[v->n_spans++] = (tkc_jspan){ 0, v->whole.text.len };
    else
        for (size_t k = from; k < n; k++)
            if (v->chosen[k] && !locate(v, k))
                return false;
    if (!encode_example(v, out, weights))
        return false;
    if (!ends)
        return true;
    size_t *grown = tkc_grow(ends->a, ends->data, &ends->cap, ends->len + 1, sizeof *grown, v->err);
    if (!grown)
        return false;
    ends->data = grown;
    ends->data[ends->len++] = out->len;
    return true;
}

/* ---- which messages ---- */

/* A mark for training: taken out of its message, as templates must not see it. *found is NULL where
 * there is none. */
static bool take_mark(view *v, size_t i, const char *name, const tkc_jv **found)
{
    tkc_jev *ev = &v->chat.reader;
    tkc_jv *message = &v->chat.messages.l->items[i];
    *found = tkc_jdict_str(ev, message->d, tkc_str(name));
    if (!*found)
        return true;
    tkc_jv copy = tkc_jv_dict(ev, TKC_JV_DICT);
    for (size_t k = 0; !tkc_jv_failed(copy) && k < message->d->len; k++) {
        const tkc_jentry *e = &message->d->entries[k];
        if (!tkc_str_is(tkc_jv_text(e->key), name) && !tkc_jdict_set(ev, copy.d, e->key, e->value))
            return false;
    }
    if (tkc_jv_failed(copy))
        return false;
    *message = copy;
    return true;
}

/* "trainable" is used by one rule only. */
static bool take_trainable(view *v, size_t i, bool *marked)
{
    const tkc_jv *found;
    bool wanted = v->o->train_on == TINKC_TRAIN_MARKED;
    if (!take_mark(v, i, "trainable", &found))
        return false;
    *marked = found && tkc_jv_truth(*found);
    if (wanted && (!found || found->kind != TKC_JV_BOOL))
        return tkc_fail(v->err, TINKC_E_ARGUMENT,
                        "messages: message %zu needs \"trainable\": true or false", i);
    if (!wanted && found)
        return tkc_fail(v->err, TINKC_E_ARGUMENT,
                        "messages: message %zu has \"trainable\", which train_on does not ask for",
                        i);
    return true;
}

/* OpenAI's mark: a message of weight 0 is not learnt, whatever the rule. */
static bool take_weight(view *v, size_t i, bool *learnt)
{
    const tkc_jv *found;
    *learnt = true;
    if (!take_mark(v, i, "weight", &found))
        return false;
    if (!found || found->kind == TKC_JV_NONE)
        return true;
    double weight = found->kind == TKC_JV_INT     ? (double)found->i
                    : found->kind == TKC_JV_FLOAT ? found->f
                                                  : -1;
    *learnt = weight > 0;
    if (weight < 0 || (weight > 0 && weight < 1) || weight > 1)
        return tkc_fail(v->err, TINKC_E_ARGUMENT, "messages: message %zu: weight must be 0 or 1",
                        i);
    if (!*learnt && v->o->train_on == TINKC_TRAIN_ALL_TOKENS)
        return tkc_fail(v->err, TINKC_E_ARGUMENT,
                        "messages: message %zu has weight 0, but all tokens are to be learnt", i);
    return true;
}

static bool has_reasoning(view *v, size_t i)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "thinking" };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (tkc_chat_field(&v->chat, i, keys[k]).len)
            return true;
    return false;
}

static bool is_chosen(view *v, size_t i, size_t last_user, bool marked)
{
    bool answer = is_role(v, i, "assistant");
    size_t n = v->chat.messages.l->len;
    switch (v->o->train_on) {
    case TINKC_TRAIN_ALL_ASSISTANT:
        return answer;
    case TINKC_TRAIN_LAST_ASSISTANT:
        return answer && i + 1 == n;
    case TINKC_TRAIN_LAST_TURN:
        return answer && (last_user == SIZE_MAX || i > last_user);
    case TINKC_TRAIN_ALL_MESSAGES:
        return true;
    case TINKC_TRAIN_USER_AND_SYSTEM:
        return is_role(v, i, "user") || is_role(v, i, "system");
    case TINKC_TRAIN_MARKED:
        return marked;
    default:
        return false;
    }
}

static bool choose(view *v)
{
    size_t n = v->chat.messages.l->len, last_user = SIZE_MAX;
    v->chosen = tkc_arena_array(&v->chat.arena, n, sizeof *v->chosen, v->err);
    v->spans = tkc_arena_array(&v->chat.arena, n + 1, sizeof *v->spans, v->err);
    if (!v->chosen || !v->spans)
        return false;
    for (size_t i = 0; i < n; i++)
        if (is_role(v, i, "user"))
            last_user = i;
    for (size_t i = 0; i < n; i++) {
        bool marked, learnt;
        if (!take_trainable(v, i, &marked) || !take_weight(v, i, &learnt))
            return false;
        if (v->chat.source->no_thinking && has_reasoning(v, i))
            return tkc_fail(v->err, TINKC_E_ARGUMENT,
                            "messages: message %zu has reasoning, which renderer '%s' leaves out",
                            i, v->o->renderer);
        v->chosen[i] = learnt && is_chosen(v, i, last_user, marked);
    }
    return true;
}

static bool add_examples(view *v, tinkc_tokens *out, tinkc_floats *weights, tinkc_sizes *ends)
{
    size_t n = v->chat.messages.l->len;
    if (!v->o->split_turns)
        return add_example(v, n, 0, out, weights, ends);
    for (size_t k = 0; k < n; k++)
        if (v->chosen[k] && !add_example(v, k + 1, k, out, weights, ends))
            return false;
    return true;
}

static bool check_train(const tinkc_chat_options *o, const tinkc_floats *weights,
                        const tinkc_sizes *ends, tinkc_error *err)
{
    if (!weights)
        return tkc_fail(err, TINKC_E_ARGUMENT, "chat_train: weights is NULL");
    if (o->train_on < TINKC_TRAIN_ALL_ASSISTANT || o->train_on > TINKC_TRAIN_MARKED)
        return tkc_fail(err, TINKC_E_ARGUMENT, "chat_train: train_on is %d", (int)o->train_on);
    if (o->continue_field || o->generation_prompt)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "chat_train: continue_field and generation_prompt are for sampling");
    if (o->split_turns && !ends)
        return tkc_fail(err, TINKC_E_ARGUMENT, "chat_train: split_turns needs ends");
    if (o->split_turns && o->train_on == TINKC_TRAIN_ALL_TOKENS)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "chat_train: split_turns and all tokens exclude each other");
    return true;
}

bool tinkc_chat_train(const tinkc_tokenizer *tok, const char *messages_json,
                      const tinkc_chat_options *options, tinkc_tokens *out, tinkc_floats *weights,
                      tinkc_sizes *ends, tinkc_error *err)
{
    static const tinkc_chat_options none = { 0 };
    tinkc_error local;
    tkc_chat_source source;
    const tinkc_chat_options *o = options ? options : &none;
    if (!tkc_enter(&err, &local) ||
        !tkc_chat_check(tok, messages_json, o, out, "chat_train", err) ||
        !check_train(o, weights, ends, err) ||
        !tkc_chat_source_of(tok, o, messages_json, &source, err))
        return false;
    view v = { .tok = tok, .o = o, .err = err };
    size_t had[3] = { out->len, weights->len, ends ? ends->len : 0 };
    bool ok = tkc_chat_open(&v.chat, &source, messages_json, o, err) &&
              set(&v, v.chat.base, "tinkc_training", tkc_jv_bool(true)) && choose(&v) &&
              add_examples(&v, out, weights, ends);
    tkc_chat_close(&v.chat);
    if (!ok) { /* leave no partial result */
        out->len = had[0];
        weights->len = had[1];
        if (ends)
            ends->len = had[2];
    }
    return ok;
}

/* ---- where an answer ends ---- */

/* The mark after an answer in the model's own template; empty if there is none. */
static tinkc_str answer_end(view *v, const tkc_chat_source *source)
{
    static const char ask[] = "[{\"role\": \"user\", \"content\": \"x\"},"
                              " {\"role\": \"assistant\", \"content\": \"y\"}]";
    tkc_rendered r;
    size_t at;
    if (!tkc_chat_open(&v->chat, source, ask, NULL, v->err))
        return (tinkc_str){ 0 };
    if (!try_render(v, with_mark(v, 1, 2), false, &r) || !find_mark(r.text, &at))
        return (tinkc_str){ 0 };
    at += sizeof mark - 1;
    tinkc_str tail = tkc_j_strip(tkc_strn(r.text.data + at, r.text.len - at), NULL, true, true);
    for (size_t n = 1; n <= tail.len; n++)
        if (ends_with_token(v->tok, tkc_strn(tail.data, n), true))
            return tkc_strn(tail.data, n);
    return (tinkc_str){ 0 };
}

static bool is_end(const tinkc_tokenizer *tok, int32_t id)
{
    for (size_t i = 0; i < tok->n_ends; i++)
        if (tok->ends[i] == id)
            return true;
    return false;
}

const char *const *tinkc_chat_stops(const tinkc_tokenizer *tok, const char *renderer,
                                    tinkc_error *err)
{
    static const char *const none[] = { NULL };
    static const tinkc_chat_options usual = { 0 };
    tinkc_error local;
    tkc_chat_source source;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!tok) {
        tkc_fail(err, TINKC_E_ARGUMENT, "chat_stops: tokenizer is NULL");
        return NULL;
    }
    if (renderer) {
        const tkc_renderer *r = tkc_find_renderer(renderer);
        if (!r || r->unsupported)
            tkc_fail(err, r ? TINKC_E_UNSUPPORTED : TINKC_E_ARGUMENT,
                     r ? "renderer '%s' needs a tokenizer that is not public"
                       : "no renderer named '%s'",
                     renderer);
        return r ? r->stops : NULL;
    }
    if (tok->n_templates == 0)
        return none;
    if (!tkc_chat_source_of(tok, &usual, NULL, &source, err))
        return NULL;
    view v = { .tok = tok, .o = &usual, .err = err, .n = 2 };
    tinkc_str end = answer_end(&v, &source);
    const char *const *stops = none;
    if (end.len && !is_end(tok, tkc_token_id(tok, end)))
        stops = tkc_chat_keep_stop(tok, end, err);
    tkc_chat_close(&v.chat);
    return tkc_failed(err) ? NULL : stops;
}
