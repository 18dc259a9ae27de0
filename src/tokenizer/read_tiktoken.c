/* read_tiktoken.c - rank files: "<base64> <rank>" per line. The rank is the id.
 *
 * A pair merges if its bytes together are a token, with the rank of that token; so each way to
 * split a token into two tokens is a merge of its rank.
 */
#include <string.h>

#include "tokenizer/load.h"

/* Real tokens have up to 256 bytes. Finding all splits takes quadratic time. */
enum { LONGEST = 2048 };

typedef struct reader {
    tkc_arena *temp;
    tinkc_error *err;
    unsigned char *bytes;
    size_t n_bytes;
    tkc_vocab_token *tokens;
    size_t n_tokens;
} reader;

static int base64_digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Length of what was decoded, SIZE_MAX if it is not base64. */
static size_t decode_base64(tinkc_str text, unsigned char *out)
{
    size_t n = 0, len = text.len;
    uint32_t bits = 0, have = 0;
    while (len > 0 && text.len - len < 2 && text.data[len - 1] == '=')
        len--;
    if (text.len % 4 != 0 || len == 0)
        return SIZE_MAX;
    for (size_t i = 0; i < len; i++) {
        int digit = base64_digit((unsigned char)text.data[i]);
        if (digit < 0)
            return SIZE_MAX;
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (unsigned char)(bits >> have);
        }
    }
    return n;
}

static bool read_line(reader *r, tinkc_str line, size_t number)
{
    size_t space = tkc_str_find(line, ' ');
    uint64_t rank;
    unsigned char *out = r->bytes + r->n_bytes;
    if (space == line.len ||
        !tkc_parse_u64(tkc_strn(line.data + space + 1, line.len - space - 1), &rank) ||
        rank > INT32_MAX / 4)
        return tkc_fail(r->err, TINKC_E_TOKENIZER, "line %zu: no token and rank", number);
    size_t n = decode_base64(tkc_strn(line.data, space), out);
    if (n == SIZE_MAX)
        return tkc_fail(r->err, TINKC_E_TOKENIZER, "line %zu: no base64", number);
    if (n > LONGEST)
        return tkc_fail(r->err, TINKC_E_TOKENIZER, "line %zu: a token of more than %d bytes",
                        number, LONGEST);
    r->n_bytes += n;
    r->tokens[r->n_tokens++] = (tkc_vocab_token){ { (const char *)out, n }, (uint32_t)rank, true };
    return true;
}

static bool read_lines(reader *r, tinkc_str text)
{
    size_t lines = 1, number = 0;
    for (size_t i = 0; i < text.len; i++)
        lines += text.data[i] == '\n';
    r->tokens = tkc_arena_alloc(r->temp, lines * sizeof *r->tokens, r->err);
    r->bytes = tkc_arena_alloc(r->temp, text.len + 1, r->err);
    if (!r->tokens || !r->bytes)
        return false;
    for (tinkc_str line; tkc_str_cut(&text, '\n', &line);) {
        number++;
        if (line.len && line.data[line.len - 1] == '\r')
            line.len--;
        if (line.len && !read_line(r, line, number))
            return false;
    }
    return r->n_tokens > 0 || tkc_fail(r->err, TINKC_E_TOKENIZER, "it is empty");
}

/* Every split of every token, in order of rank. */
static tkc_merge *all_splits(reader *r, const tkc_tables *t, size_t *n_out)
{
    size_t n = 0, cap = 0;
    for (uint32_t id = 0; id < t->n; id++)
        cap += tkc_token_text(t, id).len;
    tkc_merge *merges = tkc_arena_alloc(r->temp, (cap + 1) * sizeof *merges, r->err);
    for (uint32_t id = 0; merges && id < t->n; id++) {
        tinkc_bytes text = tkc_token_text(t, id);
        for (size_t i = 1; i < text.len; i++) {
            int32_t left = tkc_find_word(t, text.data, i);
            int32_t right = left < 0 ? -1 : tkc_find_word(t, text.data + i, text.len - i);
            if (right >= 0)
                merges[n++] = (tkc_merge){ (uint32_t)left, (uint32_t)right, id, id };
        }
    }
    *n_out = n;
    return merges;
}

bool tkc_read_tiktoken(tinkc_str text, tkc_origin origin, tkc_tables *out, tkc_arena *temp,
                       tinkc_error *err)
{
    reader r = { .temp = temp, .err = err };
    if (!read_lines(&r, text))
        return false;
    tkc_builder *b = tkc_builder_new(r.tokens, r.n_tokens, temp, err);
    if (!b)
        return false;
    if (!tkc_builder_tables(b)->all_bytes)
        return tkc_fail(err, TINKC_E_TOKENIZER, "a byte has no token");
    tkc_merges merges = { .ignore_merges = true,
                          .meta = tkc_str("{\"tiktoken\":true}"),
                          .origin = origin };
    merges.data = all_splits(&r, tkc_builder_tables(b), &merges.n);
    return merges.data && tkc_builder_finish(b, &merges, out);
}
