/* age.c - files encrypted in the age format.
 *
 * A file is a header, then the payload. The header has the file key, wrapped once for each recipient
 * with a key agreed by X25519 with an ephemeral key, and a MAC under the file key. The payload is
 * cut into chunks of 64 KiB, each sealed with ChaCha20-Poly1305 under a key derived from the file key;
 * the nonce counts chunks, and its last byte marks the last one, so that no chunk can be dropped or
 * moved. X25519 and the cipher are libcrypto's, opened on first use; HKDF and HMAC are over our SHA-256.
 * May touch: the files that it is given. Secrets are wiped.
 */
#include "service/store/age.h"

#include <dirent.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/dl.h"
#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"
#include "codec/base64.h"

enum {
    KEY = 32,
    FILE_KEY = 16,
    TAG = 16,
    NONCE = 12,
    CHUNK = 64 << 10,
    X25519 = 1034,
    GET_TAG = 0x10
};

/* ---- libcrypto ---- */

typedef struct crypto {
    void *(*raw_private)(int, void *, const unsigned char *, size_t);
    void *(*raw_public)(int, void *, const unsigned char *, size_t);
    int (*get_public)(const void *, unsigned char *, size_t *);
    void (*key_free)(void *);
    void *(*key_ctx)(void *, void *);
    void (*key_ctx_free)(void *);
    int (*derive_init)(void *);
    int (*derive_peer)(void *, void *);
    int (*derive)(void *, unsigned char *, size_t *);
    const void *(*cipher)(void);
    void *(*cipher_ctx)(void);
    void (*cipher_free)(void *);
    int (*init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
    int (*update)(void *, unsigned char *, int *, const unsigned char *, int);
    int (*final)(void *, unsigned char *, int *);
    int (*control)(void *, int, int, void *);
} crypto;

static const crypto *load(tinkc_error *err)
{
    static const tkc_dl_symbol symbols[] = {
        { "EVP_PKEY_new_raw_private_key", offsetof(crypto, raw_private) },
        { "EVP_PKEY_new_raw_public_key", offsetof(crypto, raw_public) },
        { "EVP_PKEY_get_raw_public_key", offsetof(crypto, get_public) },
        { "EVP_PKEY_free", offsetof(crypto, key_free) },
        { "EVP_PKEY_CTX_new", offsetof(crypto, key_ctx) },
        { "EVP_PKEY_CTX_free", offsetof(crypto, key_ctx_free) },
        { "EVP_PKEY_derive_init", offsetof(crypto, derive_init) },
        { "EVP_PKEY_derive_set_peer", offsetof(crypto, derive_peer) },
        { "EVP_PKEY_derive", offsetof(crypto, derive) },
        { "EVP_chacha20_poly1305", offsetof(crypto, cipher) },
        { "EVP_CIPHER_CTX_new", offsetof(crypto, cipher_ctx) },
        { "EVP_CIPHER_CTX_free", offsetof(crypto, cipher_free) },
        { "EVP_EncryptInit_ex", offsetof(crypto, init) },
        { "EVP_EncryptUpdate", offsetof(crypto, update) },
        { "EVP_EncryptFinal_ex", offsetof(crypto, final) },
        { "EVP_CIPHER_CTX_ctrl", offsetof(crypto, control) },
        { NULL, 0 },
    };
    static const char *const names[] = { "libcrypto.so.3", "libcrypto.so", NULL };
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static crypto table;
    static bool loaded;
    pthread_mutex_lock(&once);
    if (!loaded)
        loaded = tkc_dl_load(names, symbols, &table, err);
    bool ok = loaded;
    pthread_mutex_unlock(&once);
    return ok ? &table : NULL;
}

/* out = text || tag; len up to a chunk. */
static bool seal(const crypto *c, const unsigned char key[KEY], const unsigned char nonce[NONCE],
                 const void *text, size_t len, unsigned char *out, tinkc_error *err)
{
    int n = 0, more = 0;
    void *ctx = c->cipher_ctx();
    bool ok = ctx && c->init(ctx, c->cipher(), NULL, key, nonce) == 1 &&
              c->update(ctx, out, &n, text, (int)len) == 1 && c->final(ctx, out + n, &more) == 1 &&
              c->control(ctx, GET_TAG, TAG, out + len) == 1;
    c->cipher_free(ctx);
    return ok || tkc_fail(err, TINKC_E_SERVER, "age: the cipher failed");
}

/* share = secret * base point; shared = secret * peer. */
static bool agree(const crypto *c, const unsigned char secret[KEY], const unsigned char peer[KEY],
                  unsigned char share[KEY], unsigned char shared[KEY], tinkc_error *err)
{
    size_t n = KEY, m = KEY;
    void *mine = c->raw_private(X25519, NULL, secret, KEY);
    void *theirs = c->raw_public(X25519, NULL, peer, KEY);
    void *ctx = mine ? c->key_ctx(mine, NULL) : NULL;
    bool ok = theirs && ctx && c->get_public(mine, share, &n) == 1 && c->derive_init(ctx) == 1 &&
              c->derive_peer(ctx, theirs) == 1 &&
              c->derive(ctx, shared, &m) == 1; /* not all zero */
    if (ctx)
        c->key_ctx_free(ctx);
    if (mine)
        c->key_free(mine);
    if (theirs)
        c->key_free(theirs);
    return ok || tkc_fail(err, TINKC_E_BAD_REQUEST, "age: the recipient is not a usable key");
}

/* ---- HMAC and HKDF with SHA-256 (RFC 2104, RFC 5869) ---- */

static void hmac(const void *key, size_t key_len, const void *a, size_t a_len, const void *b,
                 size_t b_len, unsigned char out[KEY])
{
    unsigned char pad[2][64] = { { 0 } };
    tkc_digest sum;
    memcpy(pad[0], key_len ? key : "", key_len); /* no key here is longer than a block */
    memcpy(pad[1], pad[0], sizeof pad[0]);
    for (size_t i = 0; i < 64; i++) {
        pad[0][i] ^= 0x36;
        pad[1][i] ^= 0x5c;
    }
    tkc_sha256_init(&sum);
    tkc_digest_add(&sum, pad[0], 64);
    tkc_digest_add(&sum, a, a_len);
    tkc_digest_add(&sum, b, b_len);
    (void)tkc_digest_bytes(&sum, out);
    tkc_sha256_init(&sum);
    tkc_digest_add(&sum, pad[1], 64);
    tkc_digest_add(&sum, out, KEY);
    (void)tkc_digest_bytes(&sum, out);
    tkc_wipe(pad, sizeof pad);
    tkc_wipe(&sum, sizeof sum);
}

/* One block of output is all that is needed. */
static void hkdf(const void *secret, size_t len, const void *salt, size_t salt_len,
                 const char *info, unsigned char out[KEY])
{
    unsigned char prk[KEY];
    hmac(salt, salt_len, secret, len, "", 0, prk);
    hmac(prk, KEY, info, strlen(info), "\x01", 1, out);
    tkc_wipe(prk, sizeof prk);
}

/* ---- recipients: bech32 (BIP 173) with the prefix "age" ---- */

static uint32_t polymod_step(uint32_t check, uint32_t value)
{
    static const uint32_t generators[5] = { 0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd,
                                            0x2a1462b3 };
    uint32_t top = check >> 25;
    check = (check & 0x1ffffff) << 5 ^ value;
    for (int i = 0; i < 5; i++)
        if (top >> i & 1)
            check ^= generators[i];
    return check;
}

static bool read_recipient(const char *text, unsigned char out[KEY])
{
    static const char letters[] = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    enum { PREFIX = 4, DATA = 52, SUM = 6 };
    uint32_t check = 1, bits = 0;
    int n_bits = 0;
    size_t n = 0;
    if (strlen(text) != PREFIX + DATA + SUM || memcmp(text, "age1", PREFIX) != 0)
        return false;
    for (int i = 0; i < 3; i++)
        check = polymod_step(check, (unsigned char)text[i] >> 5);
    check = polymod_step(check, 0);
    for (int i = 0; i < 3; i++)
        check = polymod_step(check, text[i] & 31);
    for (size_t i = 0; i < DATA + SUM; i++) {
        const char *at = strchr(letters, text[PREFIX + i]);
        if (!at)
            return false;
        uint32_t value = (uint32_t)(at - letters);
        check = polymod_step(check, value);
        bits = (bits << 5 | value) & 0xfff;
        n_bits += 5;
        if (i < DATA && n_bits >= 8 && n < KEY) {
            n_bits -= 8;
            out[n++] = (unsigned char)(bits >> n_bits);
        }
    }
    return check == 1 && n == KEY;
}

bool tke_age_check(const char *const *recipients, tinkc_error *err)
{
    unsigned char key[KEY];
    size_t n = 0;
    for (; recipients[n]; n++)
        if (!read_recipient(recipients[n], key))
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "age_encryption_recipients[%zu]: '%.80s' is not an X25519 recipient "
                            "(age1...); other kinds are not supported",
                            n, recipients[n]);
    return n <= TKE_AGE_RECIPIENTS ||
           tkc_fail(err, TINKC_E_BAD_REQUEST, "age_encryption_recipients: more than %d",
                    TKE_AGE_RECIPIENTS);
}

/* ---- the header ---- */

/* Without padding, as the format wants it. */
static void add_base64(tkc_buf *out, const unsigned char *bytes, size_t len, tinkc_error *err)
{
    char text[64];
    size_t n = tkc_base64_length(len);
    tkc_base64_encode(bytes, len, text);
    while (n && text[n - 1] == '=')
        n--;
    tkc_buf_add(out, text, n, err);
}

static bool fill_random(void *out, size_t len, tinkc_error *err)
{
    return tkc_random_bytes(out, len) ||
           tkc_fail(err, TINKC_E_SERVER, "age: the system gives no random bytes");
}

static bool add_recipient(const crypto *c, const char *recipient, const unsigned char *file_key,
                          tkc_buf *out, tinkc_error *err)
{
    static const unsigned char zero[NONCE] = { 0 };
    unsigned char secret[KEY], peer[KEY], shared[KEY], wrap[KEY], salt[2 * KEY],
        body[FILE_KEY + TAG];
    if (!read_recipient(recipient, peer))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "age: '%.80s' is not a recipient", recipient);
    bool ok = fill_random(secret, sizeof secret, err) && agree(c, secret, peer, salt, shared, err);
    memcpy(salt + KEY, peer, KEY);
    if (ok) {
        hkdf(shared, KEY, salt, sizeof salt, "age-encryption.org/v1/X25519", wrap);
        ok = seal(c, wrap, zero, file_key, FILE_KEY, body, err);
    }
    if (ok) {
        tkc_buf_cstr(out, "-> X25519 ", err);
        add_base64(out, salt, KEY, err);
        tkc_buf_cstr(out, "\n", err);
        add_base64(out, body, sizeof body, err);
        tkc_buf_cstr(out, "\n", err);
    }
    tkc_wipe(secret, sizeof secret);
    tkc_wipe(shared, sizeof shared);
    tkc_wipe(wrap, sizeof wrap);
    return ok && !tkc_failed(err);
}

static bool add_header(const crypto *c, const char *const *recipients,
                       const unsigned char *file_key, tkc_buf *out, tinkc_error *err)
{
    unsigned char key[KEY], mac[KEY];
    tkc_buf_cstr(out, "age-encryption.org/v1\n", err);
    for (; *recipients; recipients++)
        if (!add_recipient(c, *recipients, file_key, out, err))
            return false;
    if (!tkc_buf_cstr(out, "---", err))
        return false;
    hkdf(file_key, FILE_KEY, "", 0, "header", key);
    hmac(key, KEY, out->data, out->len, "", 0, mac);
    tkc_wipe(key, sizeof key);
    tkc_buf_cstr(out, " ", err);
    add_base64(out, mac, KEY, err);
    return tkc_buf_cstr(out, "\n", err);
}

/* ---- the payload ---- */

/* Nonces count chunks, big-endian; the last byte marks the last chunk. */
static void set_nonce(unsigned char nonce[NONCE], uint64_t chunk, bool last)
{
    memset(nonce, 0, NONCE);
    for (int i = 0; i < 8; i++)
        nonce[10 - i] = (unsigned char)(chunk >> 8 * i);
    nonce[11] = last;
}

static bool add_payload(const crypto *c, const unsigned char key[KEY], const char *text, size_t len,
                        FILE *to, tinkc_error *err)
{
    static const size_t most = CHUNK;
    unsigned char nonce[NONCE], *sealed = tkc_alloc(NULL, CHUNK + TAG, err);
    bool ok = sealed != NULL;
    size_t at = 0;
    for (uint64_t i = 0; ok; i++) {
        size_t n = len - at < most ? len - at : most;
        bool last = at + n == len;
        set_nonce(nonce, i, last);
        ok = seal(c, key, nonce, text + at, n, sealed, err) &&
             (fwrite(sealed, 1, n + TAG, to) == n + TAG ||
              tkc_fail(err, TINKC_E_STORE, "age: the file cannot be written"));
        at += n;
        if (last)
            break;
    }
    tkc_release(NULL, sealed, CHUNK + TAG);
    return ok;
}

static bool write_age(const crypto *c, const tkc_mapping *from, const char *const *recipients,
                      FILE *to, tinkc_error *err)
{
    unsigned char file_key[FILE_KEY], key[KEY], nonce[FILE_KEY];
    tkc_buf header;
    tkc_buf_init(&header, NULL, TKC_BUF_NO_MAX);
    bool ok = fill_random(file_key, sizeof file_key, err) &&
              fill_random(nonce, sizeof nonce, err) &&
              add_header(c, recipients, file_key, &header, err);
    if (ok) {
        hkdf(file_key, FILE_KEY, nonce, sizeof nonce, "payload", key);
        ok = fwrite(header.data, 1, header.len, to) == header.len &&
             fwrite(nonce, 1, sizeof nonce, to) == sizeof nonce;
        if (!ok)
            tkc_fail(err, TINKC_E_STORE, "age: the file cannot be written");
    }
    ok = ok && add_payload(c, key, from->data ? (const char *)from->data : "", from->len, to, err);
    tkc_wipe(file_key, sizeof file_key);
    tkc_wipe(key, sizeof key);
    tkc_buf_free(&header);
    return ok;
}

/* ---- files ---- */

static bool encrypt_file(const char *path, const char *const *recipients, tinkc_error *err)
{
    char target[4200];
    tkc_mapping from = { 0 };
    const crypto *c = load(err);
    if (!c || !tkc_map_file(path, &from, err))
        return false;
    (void)snprintf(target, sizeof target, "%s.age", path);
    FILE *to = fopen(target, "wxe");
    bool ok = to != NULL && write_age(c, &from, recipients, to, err);
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
