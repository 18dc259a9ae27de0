"""Two training loops written for the Tinker API: they run against any server of it, hosted or on this machine."""

import numpy as np
from tinker import types


def ready(client):
    """The client itself: since tinker 0.38 it comes as a future."""
    return client.result() if hasattr(client, "result") else client


def supervised(client, tokenizer, conversations, *, model="nano", rank=16, steps=15, learning_rate=3e-3):
    """Fine-tunes a model on conversations. Returns the loss of each step, per learnt token, and the trained model."""
    trainer = ready(client.create_lora_training_client(base_model=model, rank=rank))
    data, learnt = [], 0.0
    for messages in conversations:
        tokens, weights = tokenizer.training_arrays(messages)
        learnt += float(weights[1:].sum())
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": types.TensorData.from_numpy(tokens[1:].astype(np.int64)),
                    "weights": types.TensorData.from_numpy(weights[1:]),
                },
            )
        )
    losses = []
    for _ in range(steps):
        gradients = trainer.forward_backward(data, "cross_entropy")
        step = trainer.optim_step(types.AdamParams(learning_rate=learning_rate))
        losses.append(gradients.result().metrics["loss:sum"] / learnt)
        step.result()
    return losses, trainer


def ask(sampler, tokenizer, question, *, max_tokens=32):
    """The model's most likely answer."""
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    how = types.SamplingParams(max_tokens=max_tokens, temperature=0.0, stop=tokenizer.end_ids)
    answer = sampler.sample(prompt=types.ModelInput.from_ints(prompt), num_samples=1, sampling_params=how).result()
    return tokenizer.decode(answer.sequences[0].tokens, skip_special_tokens=True).strip()


def reinforce(client, tokenizer, questions, reward, *, model="nano", rank=16, steps=8, group=16, learning_rate=3e-3):
    """Policy gradient with a baseline: each answer is better or worse than the others to its question.

    reward(question, answer) is a number. Returns the mean reward of each step.
    """
    trainer = ready(client.create_lora_training_client(base_model=model, rank=rank))
    how = types.SamplingParams(max_tokens=16, temperature=1.0, stop=tokenizer.end_ids)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
        for question in questions
    ]
    means = []
    for _ in range(steps):
        sampler = ready(trainer.save_weights_and_get_sampling_client())
        asked = [
            sampler.sample(prompt=types.ModelInput.from_ints(prompt), num_samples=group, sampling_params=how)
            for prompt in prompts
        ]
        data, rewards = [], []
        for question, prompt, future in zip(questions, prompts, asked, strict=True):
            answers = future.result().sequences
            texts = [tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers]
            scores = np.array([reward(question, text) for text in texts], np.float32)
            rewards.extend(scores)
            advantages = scores - scores.mean()
            data += [
                _weighed(prompt, answer, advantage)
                for answer, advantage in zip(answers, advantages, strict=True)
                if advantage != 0
            ]
        means.append(float(np.mean(rewards)))
        if data:
            gradients = trainer.forward_backward(data, "importance_sampling")
            moved = trainer.optim_step(types.AdamParams(learning_rate=learning_rate))
            gradients.result()
            moved.result()
    return means


def _weighed(prompt, answer, advantage):
    tokens = prompt + list(answer.tokens)
    before, n = len(prompt) - 1, len(answer.tokens)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
            "logprobs": types.TensorData.from_numpy(np.array([0.0] * before + list(answer.logprobs), np.float32)),
            "advantages": types.TensorData.from_numpy(np.array([0.0] * before + [advantage] * n, np.float32)),
        },
    )
