/* wrapper.cpp - the same library from C++17: tinkc.hpp frees handles and throws errors.
 *
 *     c++ -std=c++17 wrapper.cpp $(pkg-config --cflags --libs tinkc-engine tinkc) -o wrapper
 */
#include <cstdio>
#include <poll.h>

#include <tinkc/tinkc.hpp>

namespace {

std::string lesson(const std::string &ask, const std::string &answer)
{
    return R"([{"role":"user","content":")" + ask + R"("},{"role":"assistant","content":")" + answer + R"("}])";
}

/* Many samples in a loop of one's own; how many answers were right. */
int ask_many(const tinkc::client &client, const tinkc::sampler &sampler, const tinkc::tokenizer &tok)
{
    enum { QUESTIONS = 8 };
    int done = 0, right = 0;
    auto how = tinkc::sampling();
    how.temperature = 0;
    how.max_tokens = 16;
    tinkc::queue queue(client);
    std::vector<tinkc::samples> answers;
    answers.reserve(QUESTIONS); /* callbacks keep references */
    for (int i = 0; i < QUESTIONS; i++) {
        auto question = "What is " + std::to_string(20 + i) + " + 11?";
        auto prompt = tok.chat(R"([{"role":"user","content":")" + question + R"("}])");
        answers.push_back(sampler.sample(prompt, how));
        queue.on_done(answers.back(), [&, i, wanted = std::to_string(31 + i)] {
            const auto &ids = answers[static_cast<std::size_t>(i)][0].tokens;
            right += tok.decode(ids.data, ids.len).find(wanted) != std::string::npos;
            done++;
        });
    }
    pollfd fd{ queue.fd(), POLLIN, 0 };
    while (done < QUESTIONS && poll(&fd, 1, 60000) > 0)
        queue.run();
    return right;
}

void train(const tinkc::client &client, const tinkc::tokenizer &tok)
{
    tinkc_lora_options lora{};
    lora.base_model = "nano";
    lora.rank = 8;
    tinkc::trainer trainer(client, lora);
    tinkc::batch batch(client);
    batch.add_chat(tok, lesson("Who are you?", "A model that learns from C++."));
    for (int step = 0; step < 8; step++) {
        auto pass = trainer.forward_backward(batch); /* both are submitted before one waits */
        auto moved = trainer.step(tinkc::adam(2e-3));
        std::printf("step %d  loss %.3f\n", step, pass.metric("loss:sum"));
        moved.wait();
    }
    auto how = tinkc::sampling();
    how.temperature = 0;
    how.max_tokens = 24;
    auto prompt = tok.chat(R"([{"role":"user","content":"Who are you?"}])");
    auto answers = trainer.sampler().sample(prompt, how); /* the future keeps the sampler */
    for (const auto &answer : answers)
        std::printf("%s\n", tok.decode(answer.tokens.data, answer.tokens.len).c_str());
}

} // namespace

int main(int argc, char **argv)
{
    const std::string folder = argc > 1 ? argv[1] : "models/nano";
    try {
        tinkc::engine engine;
        engine.add_model("nano", folder);
        tinkc::client client(engine);
        tinkc::tokenizer tok(folder);
        train(client, tok);
        std::printf("%d of 8 sums are right\n", ask_many(client, tinkc::sampler(client, "nano"), tok));
        tinkc::sampler nothing(client, "no-such-model"); /* throws */
    } catch (const tinkc::error &e) {
        std::printf("%s: %s\n", e.name(), e.what());
        return e.code() == TINKC_E_NOT_FOUND || e.code() == TINKC_E_BAD_REQUEST ? 0 : 1;
    }
    return 1;
}
