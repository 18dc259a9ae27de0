/* chat_blocks.c - an answer in parts of two kinds: what the model thinks, then what it says.
 *
 * Models mark a thought with <think> and </think> at the beginning of the answer; a prompt may have
 * opened it. Text arrives in pieces, and a mark may be cut anywhere, so what may become one is held
 * back. Pure: may touch the choice and what it is given.
 */
#include <string.h>

#include "base/str.h"
#include "service/chat/chat_state.h"

static const char opening[] = "<think>", closing[] = "</think>";

/* How many bytes at the end of the text are the beginning of the word. */
static size_t begun_word(tinkc_str text, const char *word)
{
    size_t n = strlen(word) - 1;
    n = n < text.len ? n : text.len;
    while (n && memcmp(text.data + text.len - n, word, n) != 0)
        n--;
    return n;
}

static tinkc_str skip_space(tinkc_str s)
{
    while (s.len && strchr(" \n\r\t", s.data[0]))
        s = tkc_strn(s.data + 1, s.len - 1);
    return s;
}

/* Line breaks that set a mark apart are not part of what follows it. */
static tinkc_str past_mark(tke_chat_choice *c, tinkc_str text)
{
    if (c->skips_space)
        text = skip_space(text);
    c->skips_space &= text.len == 0;
    return text;
}

/* What the answer begins with: TKE_BLOCK_NONE = not known yet. */
static int32_t first_block(const tke_chat_part *p, tinkc_str *text, bool last)
{
    tinkc_str s = skip_space(*text);
    if (p->answer->thinks)
        return TKE_BLOCK_THINKING;
    if (tkc_starts_with(s, opening)) {
        *text = tkc_strn(s.data + sizeof opening - 1, s.len - sizeof opening + 1);
        return TKE_BLOCK_THINKING;
    }
    if (!last && s.len < sizeof opening - 1 && memcmp(s.data ? s.data : "", opening, s.len) == 0)
        return TKE_BLOCK_NONE;
    return TKE_BLOCK_TEXT;
}

/* Sends the part of a thought that is certain; true: it is over. */
static bool send_thought(const tke_chat_part *p, tke_chat_choice *c, tinkc_str *text, bool last,
                         tke_block_fn *send, void *arg)
{
    const char *end = text->len ? memmem(text->data, text->len, closing, sizeof closing - 1) : NULL;
    size_t n = end    ? (size_t)(end - text->data)
               : last ? text->len
                      : text->len - begun_word(*text, closing);
    if (n)
        send(p, c, TKE_BLOCK_THINKING, tkc_strn(text->data, n), arg);
    *text = tkc_strn(text->data + n, text->len - n);
    if (end)
        *text = tkc_strn(text->data + sizeof closing - 1, text->len - sizeof closing + 1);
    return end != NULL;
}

void tke_chat_blocks(const tke_chat_part *p, tke_chat_choice *c, tinkc_str text, bool last,
                     tke_block_fn *send, void *arg, tinkc_error *err)
{
    tkc_buf_add(&c->unsent, text.data, text.len, err);
    tinkc_str rest = tkc_buf_view(&c->unsent);
    if (c->kind == TKE_BLOCK_NONE && (c->kind = first_block(p, &rest, last)) == TKE_BLOCK_THINKING)
        c->skips_space = true;
    rest = past_mark(c, rest);
    if (c->kind == TKE_BLOCK_THINKING && send_thought(p, c, &rest, last, send, arg)) {
        c->kind = TKE_BLOCK_TEXT;
        c->skips_space = true;
        rest = past_mark(c, rest);
    }
    if (c->kind == TKE_BLOCK_TEXT) {
        if (rest.len)
            send(p, c, TKE_BLOCK_TEXT, rest, arg);
        rest.len = 0;
    }
    if (rest.len && c->unsent.data)
        memmove(c->unsent.data, rest.data, rest.len);
    c->unsent.len = rest.len;
}
