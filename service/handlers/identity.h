/* identity.h - identities: request hashes, random names, UUIDs, owners. */
#ifndef TKE_SERVICE_IDENTITY_H
#define TKE_SERVICE_IDENTITY_H

#include "base/clock.h"
#include "base/str.h"

typedef struct tke_hash128 {
    uint64_t lo, hi;
} tke_hash128;

/* Tells a repeated request from a different one with the same number. Not cryptographic. */
typedef struct tke_hasher {
    tke_hash128 h;
    uint64_t len;
} tke_hasher;
void tke_hash_begin(tke_hasher *);
void tke_hash_add(tke_hasher *, const void *bytes, size_t len); /* parts are kept apart */
void tke_hash_str(tke_hasher *, const char *text);              /* NULL differs from "" */
void tke_hash_i64(tke_hasher *, int64_t value);
void tke_hash_f64(tke_hasher *, double value);
tke_hash128 tke_hash_end(tke_hasher *);
bool tke_hash_eq(tke_hash128 a, tke_hash128 b);

/* UUID version 4: 36 characters and a NUL. */
enum { TKE_UUID_TEXT = 37 };
void tke_uuid(const tinkc_clock *, char out[TKE_UUID_TEXT]);

/* Owners and key ids are hashes with the store's own salt, so they cannot be looked up in a table
 * of likely keys, nor compared between servers. Stores of older versions have no salt. */
typedef struct tke_owner_salt {
    unsigned char bytes[16]; /* all zero = none */
} tke_owner_salt;
/* "key-" and 16 hex digits. */
enum { TKE_OWNER_TEXT = 21 };
void tke_owner_of_key(const tke_owner_salt *, tinkc_str key, char out[TKE_OWNER_TEXT]);
/* The URN of an owner, and the organization that all owners of a store belong to. */
#define TKE_ORG      "local"
#define TKE_ORG_URN  "tml:organization:" TKE_ORG
#define TKE_USER_URN "tml:organization_user:"
enum { TKE_URN_TEXT = sizeof TKE_USER_URN + 64 };
void tke_owner_urn(const char *owner, char out[TKE_URN_TEXT]);
/* 16 hex digits. */
void tke_id_of_key(const tke_owner_salt *, tinkc_str key, char out[17]);

/* CRC-32C, as the journal's records use it. */
uint32_t tke_crc32c(uint32_t seed, const void *bytes, size_t len);

#endif
