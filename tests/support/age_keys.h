/* age_keys.h - keys of the age format for tests, and files encrypted and decrypted by our own code. Included after what has
 * the asserts: support/check.h, or a scene. */
#ifndef TINKC_TESTS_AGE_KEYS_H
#define TINKC_TESTS_AGE_KEYS_H

#include "codec/age.h"

static const struct age_key {
    const char *recipient, *identity;
} age_keys[] = { { "age1zedcnlxxc3u2tt6ee4s9zv9eq8ve4dksewnz3hws8wxlds462v6q8ayt3f",
                   "AGE-SECRET-KEY-1AYF7VD0JDSVM25U7ZZJFPA0ZFWNRCK0TZCGESK9K2FYZQ2ZUJ3DSK76Z9W" },
                 { "age1ppxs5uf28my7upslc47s3senurgt74v4qckgrxxyj8z7h6wd2c8qw7k9ka",
                   "AGE-SECRET-KEY-1X8T5V7CSVYNY86G5TKP0YLVZFVFLZVP3FDXS8Z0YJSSEPNR5TQ8QNYUCJN" } };

/* Appends the text, encrypted. */
static inline void age_seal_text(const char *const *recipients, const void *text, size_t len, tkc_buf *out)
{
    static unsigned char sealed[TKC_AGE_CHUNK + TKC_AGE_TAG];
    tkc_age_stream s;
    tinkc_error err = { 0 };
    bool last = false;
    assert_true(tkc_age_begin(&s, recipients, out, &err));
    for (size_t at = 0; !last; at += TKC_AGE_CHUNK) {
        size_t n = len - at < TKC_AGE_CHUNK ? len - at : TKC_AGE_CHUNK;
        last = at + n == len;
        assert_true(tkc_age_seal(&s, (const char *)text + at, n, last, sealed, &err));
        assert_true(tkc_buf_add(out, sealed, n + TKC_AGE_TAG, &err));
    }
    tkc_age_close(&s);
}

/* Its text, which is yours; NULL: err says why it is refused. */
static inline unsigned char *age_open_text(tinkc_bytes file, const char *const *identities, size_t *len,
                                           tinkc_error *err)
{
    enum { SEALED = TKC_AGE_CHUNK + TKC_AGE_TAG };
    tkc_age_stream s;
    unsigned char *text = malloc(file.len + 1);
    size_t at = tkc_age_open(&s, file, identities, err);
    bool ok = at != 0, last = false;
    for (*len = 0; ok && !last;) {
        size_t n = file.len - at < SEALED ? file.len - at : SEALED;
        last = at + n == file.len;
        ok = tkc_age_unseal(&s, file.data + at, n, last, text + *len, err);
        *len += ok ? n - TKC_AGE_TAG : 0;
        at += n;
    }
    tkc_age_close(&s);
    if (!ok)
        free(text);
    return ok ? text : NULL;
}

#endif
