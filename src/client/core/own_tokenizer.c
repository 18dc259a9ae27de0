/* own_tokenizer.c - the tokenizer of a trainer or sampler: asked for once, then kept.
 *
 * The service says which model it is; where its tokenizer comes from is tokenizer.h's business.
 * The lock is held while the first caller fetches, so that others wait for it instead of fetching
 * the same files.
 */
#include "client/sample/sampler.h"
#include "client/train/trainer.h"
#include "tinkc/tokenizer.h"

static tinkc_tokenizer *fetch_tokenizer(tinkc_client *client, const char *model,
                                        const char *tokenizer_id, tinkc_error *err)
{
    tinkc_future *f = tinkc_tokenizer_fetch(client, model, tokenizer_id, NULL, err);
    tinkc_tokenizer *tokenizer = tinkc_future_tokenizer(f, TINKC_FOREVER, err);
    tinkc_future_free(f);
    return tokenizer;
}

static tinkc_tokenizer *of_trainer(tinkc_trainer *trainer, tinkc_error *err)
{
    tinkc_future *f = tinkc_trainer_info(trainer, err);
    const tinkc_model_info *info = tinkc_future_model_info(f, TINKC_FOREVER, err);
    tinkc_tokenizer *tokenizer = NULL;
    if (info && !info->model_name[0])
        tkc_fail(err, TINKC_E_TOKENIZER, "the service does not say which model this is");
    else if (info)
        tokenizer = fetch_tokenizer(trainer->client, info->model_name,
                                    info->tokenizer_id[0] ? info->tokenizer_id : NULL, err);
    tinkc_future_free(f);
    return tokenizer;
}

const tinkc_tokenizer *tinkc_trainer_tokenizer(tinkc_trainer *trainer, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!trainer) {
        tkc_fail(err, TINKC_E_ARGUMENT, "trainer: must not be NULL");
        return NULL;
    }
    if (!tkc_client_check(trainer->client, err) || !tkc_client_check_waits(trainer->client, err))
        return NULL;
    pthread_mutex_lock(&trainer->tokenizer_lock);
    if (!trainer->tokenizer) {
        trainer->tokenizer = of_trainer(trainer, err);
        trainer->tokenizer_free = tinkc_tokenizer_free;
    }
    const tinkc_tokenizer *tokenizer = trainer->tokenizer;
    pthread_mutex_unlock(&trainer->tokenizer_lock);
    return tokenizer;
}

static tinkc_tokenizer *of_sampler(tinkc_sampler *sampler, tinkc_error *err)
{
    tinkc_future *f = tinkc_sampler_info(sampler, err);
    const tinkc_sampler_record *record = tinkc_future_sampler_record(f, TINKC_FOREVER, err);
    tinkc_tokenizer *tokenizer =
        record ? fetch_tokenizer(sampler->client, record->base_model, NULL, err) : NULL;
    tinkc_future_free(f);
    return tokenizer;
}

const tinkc_tokenizer *tinkc_sampler_tokenizer(tinkc_sampler *sampler, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!sampler) {
        tkc_fail(err, TINKC_E_ARGUMENT, "sampler: must not be NULL");
        return NULL;
    }
    if (!tkc_client_check(sampler->client, err) || !tkc_client_check_waits(sampler->client, err))
        return NULL;
    pthread_mutex_lock(&sampler->tokenizer_lock);
    if (!sampler->tokenizer) {
        sampler->tokenizer = of_sampler(sampler, err);
        sampler->tokenizer_free = tinkc_tokenizer_free;
    }
    const tinkc_tokenizer *tokenizer = sampler->tokenizer;
    pthread_mutex_unlock(&sampler->tokenizer_lock);
    return tokenizer;
}
