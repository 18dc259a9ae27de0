"""The loops against a server on this machine: the fixtures come with `pip install tinkc`."""

import loops
import pytest
import tinkc

PIRATES = [
    [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": f"Arr, it be {a + b}!"}]
    for a, b in ((1, 2), (3, 4), (5, 1), (2, 6))
]


@pytest.fixture(scope="session")
def tokenizer():
    return tinkc.Tokenizer.from_pretrained("nano")


@pytest.mark.tinker_no_network
def test_supervised_training_teaches_an_answer(tinker_client, tokenizer):
    losses, trainer = loops.supervised(tinker_client, tokenizer, PIRATES)
    assert losses[-1] < losses[0] / 5
    sampler = loops.ready(trainer.save_weights_and_get_sampling_client())
    assert loops.ask(sampler, tokenizer, "What is 3 + 4?").startswith("Arr, it be")


@pytest.mark.tinker_no_network
def test_reinforcement_raises_the_reward(tinker_client, tokenizer):
    means = loops.reinforce(
        tinker_client,
        tokenizer,
        ["Say a number.", "What is 2 + 2?"],
        lambda question, answer: -len(answer) / 16,  # the shorter, the better
    )
    assert max(means[-3:]) > means[0], means
