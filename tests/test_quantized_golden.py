"""Real models in int8, as CPUs have them by default, against transformers' recorded continuations in float32.

What transformers said is given as the prompt, so that each of its tokens is judged after its own ones: the best token
may be another only where its best two are near.
"""

import json
from pathlib import Path

import pytest

from xlaserve.engine.llm import LLM
from xlaserve.sampling_params import SamplingParams

pytestmark = pytest.mark.models
DATA = Path(__file__).parent / "data" / "golden"
LIMITS = ["model.max_model_len=1024", "scheduler.max_num_batched_tokens=64", "scheduler.max_num_seqs=4"]
SCORE = SamplingParams(max_tokens=0, prompt_logprobs=0)


def parted(llm: LLM, case: dict) -> list[float]:
    """Between transformers' best two logprobs, wherever the engine has another best token."""
    ids = case["prompt_ids"] + case["output_ids"]
    tokens = llm.generate([ids], SCORE)[0].prompt_tokens
    assert tokens is not None
    gaps = [step["top"][0][1] - step["top"][1][1] for step in case["steps"]]
    return [gap for gap, token in zip(gaps, tokens[len(case["prompt_ids"]) :], strict=True) if token.rank != 1]


@pytest.mark.parametrize(
    ("name", "quantization", "agreement", "largest"),
    [
        ("smollm2-135m", "int8", 0.93, 0.75),
        ("smollm2-135m", "int8_weight_only", 0.93, 0.5),
        ("gemma3-270m", "int8", 0.95, 0.75),
    ],
)
def test_tokens_part_only_where_the_best_two_are_near(name, quantization, agreement, largest, request, cache_dir):
    model = request.getfixturevalue({"smollm2-135m": "demo_gguf", "gemma3-270m": "gemma_gguf"}[name])
    cases = json.loads((DATA / f"{name}.json").read_text())["cases"]
    with LLM(str(model), overrides=[*LIMITS, f"model.quantization={quantization}"], cache_dir=cache_dir) as llm:
        gaps = [gap for case in cases for gap in parted(llm, case)]
    num_tokens = sum(len(case["output_ids"]) for case in cases)
    assert len(gaps) <= (1 - agreement) * num_tokens
    assert max(gaps) <= largest
