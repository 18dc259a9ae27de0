/* age_files.c - the files of a folder, encrypted in the age format. May touch: the files that it is given. */
#include "service/store/age_files.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "codec/age.h"

bool tke_age_check(const char *const *recipients, tinkc_error *err)
{
    unsigned char key[TKC_AGE_KEY];
    size_t n = 0;
    for (; recipients[n]; n++)
        if (!tkc_age_recipient(recipients[n], key))
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "age_encryption_recipients[%zu]: '%.80s' is not an X25519 recipient "
                            "(age1...); other kinds are not supported",
                            n, recipients[n]);
    return n <= TKE_AGE_RECIPIENTS ||
           tkc_fail(err, TINKC_E_BAD_REQUEST, "age_encryption_recipients: more than %d",
                    TKE_AGE_RECIPIENTS);
}

static bool put(FILE *to, const void *bytes, size_t len, tinkc_error *err)
{
    return fwrite(bytes, 1, len, to) == len ||
           tkc_fail(err, TINKC_E_STORE, "age: the file cannot be written");
}

static bool add_payload(tkc_age_stream *s, tinkc_str text, FILE *to, tinkc_error *err)
{
    enum { SEALED = TKC_AGE_CHUNK + TKC_AGE_TAG };
    unsigned char *sealed = tkc_alloc(NULL, SEALED, err);
    bool ok = sealed != NULL, last = false;
    for (size_t at = 0; ok && !last; at += TKC_AGE_CHUNK) {
        size_t left = text.len - at, n = left < TKC_AGE_CHUNK ? left : TKC_AGE_CHUNK;
        last = n == left;
        ok = tkc_age_seal(s, text.data + at, n, last, sealed, err) &&
             put(to, sealed, n + TKC_AGE_TAG, err);
    }
    tkc_release(NULL, sealed, SEALED);
    return ok;
}

static bool write_age(const tkc_mapping *from, const char *const *recipients, FILE *to,
                      tinkc_error *err)
{
    tkc_age_stream s;
    tkc_buf header;
    tkc_buf_init(&header, NULL, TKC_BUF_NO_MAX);
    const tinkc_str text = tkc_strn(from->data ? (const char *)from->data : "", from->len);
    bool ok = tkc_age_begin(&s, recipients, &header, err) && put(to, header.data, header.len, err) &&
              add_payload(&s, text, to, err);
    tkc_age_close(&s);
    tkc_buf_free(&header);
    return ok;
}

static bool encrypt_file(const char *path, const char *const *recipients, tinkc_error *err)
{
    char target[4200];
    tkc_mapping from = { 0 };
    if (!tkc_map_file(path, &from, err))
        return false;
    (void)snprintf(target, sizeof target, "%s.age", path);
    FILE *to = fopen(target, "wxe");
    bool ok = to != NULL && write_age(&from, recipients, to, err);
    if (to && fclose(to) != 0)
        ok = false;
    tkc_unmap_file(&from);
    if (!ok && !tkc_failed(err))
        tkc_fail(err, TINKC_E_STORE, "age: %.300s cannot be written", target);
    return ok && (unlink(path) == 0 || tkc_fail(err, TINKC_E_STORE, "age: %.300s stays", path));
}

bool tke_age_folder(const char *folder, const char *const *recipients, tinkc_error *err)
{
    char path[4096];
    DIR *d = opendir(folder);
    if (!d)
        return tkc_fail(err, TINKC_E_STORE, "age: %.300s cannot be read", folder);
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(d));) {
        if (e->d_name[0] == '.' || tkc_ends_with(tkc_str(e->d_name), ".age"))
            continue;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ok = n > 0 && (size_t)n < sizeof path && encrypt_file(path, recipients, err);
    }
    (void)closedir(d);
    return ok;
}
