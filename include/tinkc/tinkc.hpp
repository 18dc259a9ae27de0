/* tinkc.hpp - the library from C++17: handles that free themselves, exceptions instead of error arguments.
 *
 * A thin cover over tinkc.h and engine.h, with no library of its own: link what you use. Every object
 * is movable and owns one handle; .get() gives it to any C function that has no cover here, and
 * tinkc::call makes an exception of that function's error. What C borrows from a future lives here as
 * long as the object that holds the future.
 */
#ifndef TINKC_HPP
#define TINKC_HPP

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine.h"
#include "tinkc.h"

namespace tinkc {

/* ---- errors ---- */

class error : public std::runtime_error {
public:
    explicit error(const tinkc_error &e) : std::runtime_error(e.message), raw_(e) {}
    std::int32_t code() const noexcept { return raw_.code; }
    const char *name() const noexcept { return tinkc_code_name(raw_.code); }
    bool retriable() const noexcept { return (raw_.flags & TINKC_RETRIABLE) != 0; }
    const tinkc_error &raw() const noexcept { return raw_; }

private:
    tinkc_error raw_;
};

/* Calls fn(args..., &err) and throws if it failed: call(tinkc_client_connect, client.get(), 1000). */
template <class Fn, class... Args> auto call(Fn &&fn, Args &&...args)
{
    tinkc_error err{};
    if constexpr (std::is_void_v<std::invoke_result_t<Fn, Args..., tinkc_error *>>) {
        std::forward<Fn>(fn)(std::forward<Args>(args)..., &err);
        if (err.code)
            throw error(err);
    } else {
        auto result = std::forward<Fn>(fn)(std::forward<Args>(args)..., &err);
        if (err.code)
            throw error(err);
        return result;
    }
}

/* ---- handles ---- */

/* One handle of the C library, freed with Free. */
template <class T, void (*Free)(T *)> class handle {
public:
    handle() noexcept = default;
    explicit handle(T *p) noexcept : p_(p) {}
    T *get() const noexcept { return p_.get(); }
    explicit operator bool() const noexcept { return p_ != nullptr; }

private:
    struct freer {
        void operator()(T *p) const noexcept { Free(p); }
    };
    std::unique_ptr<T, freer> p_;
};

/* A growable array of C's, freed at the end of its scope. */
struct text {
    text() = default;
    text(const text &) = delete;
    text &operator=(const text &) = delete;
    ~text() { tinkc_text_free(&raw); }
    std::string str() const { return raw.data ? std::string(raw.data, raw.len) : std::string(); }
    tinkc_text raw{};
};

struct tokens {
    tokens() = default;
    tokens(const tokens &) = delete;
    tokens &operator=(const tokens &) = delete;
    ~tokens() { tinkc_tokens_free(&raw); }
    std::vector<std::int32_t> vec() const { return { raw.data, raw.data + raw.len }; }
    tinkc_tokens raw{};
};

struct floats {
    floats() = default;
    floats(const floats &) = delete;
    floats &operator=(const floats &) = delete;
    ~floats() { tinkc_floats_free(&raw); }
    std::vector<float> vec() const { return { raw.data, raw.data + raw.len }; }
    tinkc_floats raw{};
};

/* ---- parameters: ready to be changed ---- */

inline tinkc_sampling sampling() noexcept
{
    tinkc_sampling s = TINKC_SAMPLING_INIT;
    return s;
}

inline tinkc_adam adam(double learning_rate) noexcept
{
    tinkc_adam a = TINKC_ADAM_INIT;
    a.learning_rate = learning_rate;
    return a;
}

/* ---- tokenizer ---- */

class tokenizer : public handle<tinkc_tokenizer, tinkc_tokenizer_free> {
public:
    /* A folder with tokenizer.json. */
    explicit tokenizer(const std::string &folder)
        : handle(call(tinkc_tokenizer_open, folder.c_str(), nullptr))
    {
    }
    std::vector<std::int32_t> encode(const std::string &s) const
    {
        tokens out;
        call(tinkc_encode, get(), s.c_str(), &out.raw);
        return out.vec();
    }
    std::string decode(const std::int32_t *ids, std::size_t n, bool skip_special = true) const
    {
        text out;
        tinkc_decode_options how{};
        how.skip_special = skip_special;
        call(tinkc_decode_span, get(), ids, n, &how, &out.raw);
        return out.str();
    }
    std::string decode(const std::vector<std::int32_t> &ids) const
    {
        return decode(ids.data(), ids.size());
    }
    /* Messages as JSON, ending where the assistant is to speak. */
    std::vector<std::int32_t> chat(const std::string &messages_json) const
    {
        tokens out;
        tinkc_chat_options how{};
        how.generation_prompt = true;
        call(tinkc_chat_encode, get(), messages_json.c_str(), &how, &out.raw);
        return out.vec();
    }
};

/* ---- futures ---- */

class future : public handle<tinkc_future, tinkc_future_free> {
public:
    using handle::handle;
    bool done() const noexcept { return tinkc_future_done(get()); }
    void cancel() noexcept { tinkc_future_cancel(get()); }
    /* Waits; throws what it failed with, TINKC_E_TIMEOUT if it has not come yet. */
    void wait(std::int64_t timeout_ms = TINKC_FOREVER) const
    {
        call(tinkc_future_wait, get(), timeout_ms);
    }
    std::string path(std::int64_t timeout_ms = TINKC_FOREVER) const
    {
        return call(tinkc_future_path, get(), timeout_ms);
    }
};

/* What came of a pass. Waits where it must. */
class pass : public future {
public:
    using future::future;
    double metric(const char *name, double if_absent = 0) const
    {
        return tinkc_fwdbwd_metric(result(), name, if_absent);
    }
    std::size_t size() const { return tinkc_fwdbwd_count(result()); }
    const tinkc_fwdbwd *result() const { return call(tinkc_future_fwdbwd, get(), TINKC_FOREVER); }
};

/* Answers to a prompt, a range of tinkc_sequence. Waits where it must. */
class samples : public future {
public:
    using future::future;
    class iterator {
    public:
        iterator(const tinkc_samples *s, std::size_t i) noexcept : s_(s), i_(i) {}
        const tinkc_sequence &operator*() const noexcept { return *tinkc_samples_at(s_, i_); }
        iterator &operator++() noexcept { return ++i_, *this; }
        bool operator!=(const iterator &o) const noexcept { return i_ != o.i_; }

    private:
        const tinkc_samples *s_;
        std::size_t i_;
    };
    iterator begin() const { return { result(), 0 }; }
    iterator end() const { return { result(), size() }; }
    std::size_t size() const { return tinkc_samples_count(result()); }
    const tinkc_sequence &operator[](std::size_t i) const
    {
        const tinkc_sequence *s = tinkc_samples_at(result(), i);
        return s ? *s : throw std::out_of_range("tinkc::samples");
    }
    const tinkc_samples *result() const { return call(tinkc_future_samples, get(), TINKC_FOREVER); }
};

/* ---- engine, client ---- */

class server : public handle<tinkc_server, tinkc_server_free> {
public:
    using handle::handle;
    std::string url() const { return tinkc_server_url(get()); }
};

class engine : public handle<tinkc_engine, tinkc_engine_free> {
public:
    explicit engine(const tinkc_engine_options &o = {}) : handle(call(tinkc_engine_new, &o)) {}
    void add_model(const std::string &name, const std::string &folder)
    {
        call(tinkc_engine_add_model, get(), name.c_str(), folder.c_str());
    }
    const tinkc_transport *transport() const noexcept { return tinkc_engine_transport(get()); }
    server serve(const tinkc_serve_options &o = {})
    {
        return server(call(tinkc_engine_serve, get(), &o));
    }
};

class client : public handle<tinkc_client, tinkc_client_free> {
public:
    /* The hosted service, as the environment says; or as the options say. */
    explicit client(const tinkc_client_options &o = {}) : handle(call(tinkc_client_new, &o)) {}
    explicit client(const engine &e) : client(on(e)) {}

private:
    static tinkc_client_options on(const engine &e) noexcept
    {
        tinkc_client_options o{};
        o.transport = e.transport();
        return o;
    }
};

/* ---- training, sampling ---- */

class batch : public handle<tinkc_batch, tinkc_batch_free> {
public:
    explicit batch(const client &c) : handle(call(tinkc_batch_new, c.get())) {}
    /* The first `context` tokens are read, the others are learnt. */
    void add(const std::vector<std::int32_t> &ids, std::size_t context)
    {
        call(tinkc_batch_add_sft, get(), ids.data(), ids.size(), context);
    }
    /* A whole conversation as JSON: the assistant's messages are learnt. */
    void add_chat(const tokenizer &tok, const std::string &messages_json)
    {
        tokens ids;
        floats weights;
        call(tinkc_chat_train, tok.get(), messages_json.c_str(), nullptr, &ids.raw, &weights.raw,
             nullptr);
        call(tinkc_batch_add_weighted, get(), ids.raw.data, ids.raw.len, weights.raw.data);
    }
};

class sampler : public handle<tinkc_sampler, tinkc_sampler_free> {
public:
    using handle::handle;
    /* A base model, or with "tinker://" in front a checkpoint. */
    sampler(const client &c, const std::string &model) : handle(open(c, model)) {}
    samples sample(const std::vector<std::int32_t> &prompt, const tinkc_sampling &how,
                   std::size_t n = 1) const
    {
        return samples(call(tinkc_sample, get(), prompt.data(), prompt.size(), n, &how));
    }

private:
    static tinkc_sampler *open(const client &c, const std::string &model)
    {
        tinkc_sampler_options o{};
        (model.rfind("tinker://", 0) == 0 ? o.model_path : o.base_model) = model.c_str();
        return call(tinkc_sampler_new, c.get(), &o);
    }
};

class trainer : public handle<tinkc_trainer, tinkc_trainer_free> {
public:
    trainer(const client &c, const tinkc_lora_options &o) : handle(call(tinkc_trainer_new, c.get(), &o))
    {
    }
    pass forward_backward(const batch &b, const char *loss = TINKC_CROSS_ENTROPY)
    {
        return pass(call(tinkc_forward_backward, get(), b.get(), loss, nullptr));
    }
    future step(const tinkc_adam &a) { return future(call(tinkc_optim_step, get(), &a)); }
    future save(const std::string &name)
    {
        return future(call(tinkc_trainer_save, get(), name.c_str(), nullptr));
    }
    class sampler sampler() { return tinkc::sampler(call(tinkc_trainer_sampler, get())); }
};

/* ---- completion in a loop of your own ---- */

class queue : public handle<tinkc_queue, tinkc_queue_free> {
public:
    explicit queue(const client &c) : handle(call(tinkc_queue_new, c.get())), failed_(new std::exception_ptr)
    {
    }
    int fd() const noexcept { return tinkc_queue_fd(get()); } /* readable while callbacks wait */
    /* fn runs inside run(), once; a future that is freed before never calls it. */
    template <class F> void on_done(const F &f, std::function<void()> fn)
    {
        waiting_.push_back(std::make_unique<job>(job{ std::move(fn), failed_.get() }));
        call(tinkc_future_on_done, f.get(), get(), run_job, waiting_.back().get());
    }
    /* Runs what has finished; how many. Throws what the first failing callback threw, afterwards. */
    std::size_t run(std::int64_t timeout_ms = 0)
    {
        std::size_t n = call(tinkc_queue_run, get(), timeout_ms);
        if (auto thrown = std::exchange(*failed_, nullptr))
            std::rethrow_exception(thrown);
        return n;
    }

private:
    struct job {
        std::function<void()> fn;
        std::exception_ptr *failed;
    };
    /* No exception may pass through C. */
    static void run_job(tinkc_future *, void *user)
    {
        job *j = static_cast<job *>(user);
        try {
            std::exchange(j->fn, nullptr)();
        } catch (...) {
            if (!*j->failed)
                *j->failed = std::current_exception();
        }
    }
    std::vector<std::unique_ptr<job>> waiting_;
    std::unique_ptr<std::exception_ptr> failed_;
};

} // namespace tinkc

#endif
