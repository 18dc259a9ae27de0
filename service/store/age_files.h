/* age_files.h - the files of a folder, encrypted in the age format to X25519 recipients. Internal. */
#ifndef TKE_STORE_AGE_FILES_H
#define TKE_STORE_AGE_FILES_H

#include "base/err.h"

enum { TKE_AGE_RECIPIENTS = 10 };

/* Are these (a list) recipients that files can be encrypted to? False: err says which is not. */
bool tke_age_check(const char *const *recipients, tinkc_error *err);
/* Encrypts every file of the folder to the recipients: NAME becomes NAME.age. */
bool tke_age_folder(const char *folder, const char *const *recipients, tinkc_error *err);

#endif
