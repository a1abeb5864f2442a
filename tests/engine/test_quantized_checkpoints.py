"""Checkpoints with quantised weights, served: logprobs are those of a plain model with what the weights stand for."""

import numpy as np
import pytest

from tests.engine.test_prompt_logprobs import scoring
from tests.engine.test_quantized_kv import logprobs_of, picked
from tests.models.quantized_writing import CONFIG, write_folder
from tests.plain_llama import plain_logprobs
from xlaserve.engine.llm import LLM

PROMPT = np.random.default_rng(1).integers(0, 96, 40).tolist()


@pytest.mark.parametrize("form", ["awq", "gptq", "packed, zero points", "float8"])
def test_logprobs_are_those_of_a_plain_model(form, tmp_path, cache_dir):
    exact = write_folder(tmp_path, form)
    limits = ["model.dtype=float32", "scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=8"]
    with LLM(str(tmp_path), overrides=limits, cache_dir=cache_dir) as llm:
        found = logprobs_of(llm.generate([PROMPT], scoring(0))[0])
    np.testing.assert_allclose(found, picked(plain_logprobs(CONFIG, exact, PROMPT), PROMPT), atol=1e-4)
