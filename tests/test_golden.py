"""Real models against transformers' recorded continuations: float32 ids equal, logprobs within 1e-3, however run."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.server.harness import served
from xlaserve.engine.llm import LLM
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.app import create_app
from xlaserve.server.state import ServerState

pytestmark = pytest.mark.models
DATA = Path(__file__).parent / "data" / "golden"
SMOLLM2 = json.loads((DATA / "smollm2-135m.json").read_text())["cases"]
GEMMA3 = json.loads((DATA / "gemma3-270m.json").read_text())["cases"]
GEMMA3_LIMITS = {"scheduler__max_num_batched_tokens": 64, "scheduler__max_num_seqs": 8}


def params_of(case: dict) -> SamplingParams:
    return SamplingParams(max_tokens=case["max_tokens"], temperature=0.0, logprobs=5)


def check(case: dict, completion) -> None:
    assert completion.token_ids == case["output_ids"]
    for step, got in zip(case["steps"], completion.logprobs, strict=True):
        assert abs(got.logprob - step["logprob"]) < 1e-3
        recorded = dict(map(tuple, step["top"]))
        weakest = min(recorded.values())
        for token_id, _, _, logprob in got.top:  # near the end of the five, neighbours this close may change places
            assert abs(logprob - recorded.get(token_id, weakest)) < 1e-3
    assert completion.text == case["text"]


def start(model: Path, cache_dir: Path, **settings) -> LLM:
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    return LLM(
        str(model), overrides=["model.dtype=float32", "model.max_model_len=1024", *overrides], cache_dir=cache_dir
    )


def check_solo(llm: LLM, cases: list[dict]) -> None:
    for case in cases:
        check(case, llm.generate([case["prompt_ids"]], params_of(case))[0])


def check_batch(llm: LLM, cases: list[dict]) -> None:
    outputs = llm.generate([case["prompt_ids"] for case in cases], [params_of(case) for case in cases])
    for case, completion in zip(cases, outputs, strict=True):
        check(case, completion)


def test_smollm2_alone_together_and_over_http(demo_gguf, cache_dir):
    with start(demo_gguf, cache_dir, model__served_name="smol") as llm:
        free_blocks = llm.service.free_blocks()
        check_solo(llm, SMOLLM2)
        check_batch(llm, SMOLLM2)
        state = ServerState(max_requests=1, max_body=100_000)
        state.set_ready(served(llm.service))
        client = create_app(state).test_client()
        for case in SMOLLM2:
            check_http(client, case)
        assert llm.service.free_blocks() == free_blocks


def check_http(client, case: dict) -> None:
    body = {"model": "smol", "max_tokens": case["max_tokens"], "temperature": 0, "return_token_ids": True}
    if "messages" in case:
        route, body = "/v1/chat/completions", body | {"messages": case["messages"], "logprobs": True}
    else:
        route, body = "/v1/completions", body | {"prompt": case["prompt"], "logprobs": 1}
    whole = client.post(route, json=body).get_json()
    (choice,) = whole["choices"]
    text = choice["message"]["content"] if "messages" in case else choice["text"]
    assert (choice["token_ids"], text) == (case["output_ids"], case["text"])
    assert whole["usage"]["prompt_tokens"] == len(case["prompt_ids"])
    assert whole["usage"]["completion_tokens"] == len(case["output_ids"])

    with client.post(route, json=body | {"stream": True}) as reply:
        lines = reply.get_data(as_text=True).split("\n\n")
    events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert [i for chunk in choices for i in chunk.get("token_ids") or []] == case["output_ids"]
    pieces = [chunk["delta"].get("content") if "messages" in case else chunk["text"] for chunk in choices]
    assert "".join(piece or "" for piece in pieces) == case["text"]


@pytest.mark.parametrize("chunk", [3, 16, 17])
def test_smollm2_in_chunks(demo_gguf, cache_dir, chunk):
    with start(demo_gguf, cache_dir, scheduler__long_prefill_token_threshold=chunk) as llm:  # programs as above
        check_batch(llm, SMOLLM2)


def test_smollm2_with_preemptions_forks_and_a_host_tier(demo_gguf, cache_dir):
    limits = {
        "scheduler__max_num_batched_tokens": 64,
        "scheduler__max_num_seqs": 10,
        "cache__num_blocks": 27,
        "cache__host_memory": "64MiB",
        "model__max_model_len": 26 * 16,
    }
    with start(demo_gguf, cache_dir, **limits) as llm:
        check_batch(llm, SMOLLM2[:8])  # each fits alone, but not all that are admitted together
        assert llm.service.stats()["preemptions"] > 0
        check_forks(llm, SMOLLM2[:4])
        check_solo(llm, SMOLLM2[7:8])  # the longest: blocks that were computed before are on the host by now
        check_batch(llm, SMOLLM2[:7])
        check_solo(llm, SMOLLM2[7:8])
        assert llm.service.stats()["restores"] > 0


def check_forks(llm: LLM, cases: list[dict]) -> None:
    """Three answers to each prompt, which begin with the same blocks."""
    params = [dataclasses.replace(params_of(case), n=3) for case in cases]
    answers = llm.generate([case["prompt_ids"] for case in cases], params)
    for number, case in enumerate(cases):
        for answer in answers[3 * number : 3 * number + 3]:
            check(case, answer)


def test_gemma3_alone_and_together(gemma_gguf, cache_dir):
    with start(gemma_gguf, cache_dir, **GEMMA3_LIMITS) as llm:
        check_solo(llm, GEMMA3)
        check_batch(llm, GEMMA3)


@pytest.mark.parametrize("chunk", [16, 17])  # smaller ones take its windows minutes; tiny models have them
def test_gemma3_in_chunks(gemma_gguf, cache_dir, chunk):
    with start(gemma_gguf, cache_dir, scheduler__long_prefill_token_threshold=chunk, **GEMMA3_LIMITS) as llm:
        check_batch(llm, GEMMA3)
