"""transformers' logits processors once more, in float64 and for one row: what the sample head is held against.

They were compared with transformers' own on random logits: by `python -m tests.runner.logits_reference`, which needs
torch.
"""

import numpy as np


def process(
    logits, *, prompt=(), output=(), bias=None, forbidden=(), repetition_penalty=1.0, frequency_penalty=0.0,
    presence_penalty=0.0, stop_ids=(), min_tokens=0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0,
) -> np.ndarray:  # fmt: skip
    """The scores [V] whose softmax is drawn from; minus infinity where a token is not."""
    scores = np.array(logits, np.float64)
    for token, value in (bias or {}).items():
        scores[token] += value
    for token in {*prompt, *output}:
        scores[token] = scores[token] / repetition_penalty if scores[token] > 0 else scores[token] * repetition_penalty
    for token in output:
        scores[token] -= frequency_penalty
    for token in set(output):
        scores[token] -= presence_penalty
    scores[list(forbidden)] = -np.inf
    if len(output) < min_tokens:
        scores[list(stop_ids)] = -np.inf
    scores /= temperature
    if 0 < top_k < len(scores):
        scores[scores < np.sort(scores)[-top_k]] = -np.inf
    if top_p < 1:
        order = np.argsort(scores, kind="stable")
        below = np.cumsum(probabilities(scores)[order]) <= 1 - top_p
        below[-1] = False
        scores[order[below]] = -np.inf
    shares = probabilities(scores)
    scores[shares < min_p * shares.max()] = -np.inf
    return scores


def probabilities(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def _compare() -> None:
    import torch
    from transformers import generation as hf

    rng = np.random.default_rng(0)
    for vocab in (40, 300, 2000):
        for _ in range(50):
            logits = rng.standard_normal(vocab) * 3
            prompt, output = (
                rng.integers(vocab, size=9).tolist(),
                rng.integers(vocab, size=int(rng.integers(9))).tolist(),
            )
            ids = torch.tensor([prompt + output])
            stop_ids, forbidden, num_prompt = [1, 2], [int(rng.integers(3, vocab))], len(prompt)
            penalty, temperature = float(rng.uniform(0.5, 2)), float(rng.uniform(0.3, 2))
            top_k, top_p, min_p = int(rng.integers(1, 30)), float(rng.uniform(0.3, 0.99)), float(rng.uniform(0.01, 0.3))
            biases = {int(token): float(rng.uniform(-5, 5)) for token in rng.integers(vocab, size=5)}
            expected = torch.tensor(logits)[None]
            for processor in (
                hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in biases.items()]),
                hf.RepetitionPenaltyLogitsProcessor(penalty),
                hf.NoBadWordsLogitsProcessor([forbidden], stop_ids),
                hf.MinNewTokensLengthLogitsProcessor(num_prompt, 5, stop_ids),
                hf.TemperatureLogitsWarper(temperature),
                hf.TopKLogitsWarper(top_k),
                hf.TopPLogitsWarper(top_p),
                hf.MinPLogitsWarper(min_p),
            ):
                expected = processor(ids, expected)
            found = process(
                logits, prompt=prompt, output=output, bias=biases, forbidden=forbidden, repetition_penalty=penalty,
                stop_ids=stop_ids, min_tokens=5, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            )  # fmt: skip
            np.testing.assert_allclose(found, expected[0].numpy(), rtol=1e-6)
    print("as transformers' processors")


if __name__ == "__main__":
    _compare()
