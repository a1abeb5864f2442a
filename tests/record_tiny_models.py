"""Records tiny random models, and what transformers with torch says of them, in tests/data/tiny.

    python -m tests.record_tiny_models           # makes the models and all that is recorded of them anew
    python -m tests.record_tiny_models --check   # computes it again from the recorded models; names what differs

Needs the extra `record` (torch).
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

from tests import evaluation, tiny_models
from tests.tiny_configs import COMMON, CONFIGS, make_config
from tests.tiny_models import (
    BEAMS_FILE,
    BFLOAT16_FILE,
    DATA,
    GREEDY_FILE,
    HIDDEN_FILE,
    LENGTHS,
    PROMPTS_FILE,
    SAMPLING_FILE,
)

SHARDS = {tiny_models.SHARDED: "20KB"}

GREEDY_GAP = 1e-4  # between the best two logits of each step: less may fall either way elsewhere
# Processors sum in other orders: torch in float32 differs by 2e-5 between AVX2 and AVX-512, and by 4e-5 from float64,
# in logits of up to 8.
TOLERANCES = {
    ".npz": dict(rtol=0, atol=5e-5),
    GREEDY_FILE.name: dict(rtol=0),
    BEAMS_FILE.name: dict(rtol=0, atol=5e-5),
    BFLOAT16_FILE.name: dict(rtol=0.2),
    evaluation.RECORDED_FILE.name: dict(rtol=0, atol=1e-3),  # sums over hundreds of tokens
}


def record_models() -> None:
    for name in CONFIGS:
        torch.manual_seed(sum(name.encode()))
        model = hf.AutoModelForCausalLM.from_config(make_config(name))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # biases start at 0 and norms at 1, where mistakes do not show
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        model.to(torch.bfloat16).save_pretrained(DATA / name, max_shard_size=SHARDS.get(name, "1GB"))


def record_inputs() -> None:
    generator = np.random.default_rng(1)
    lengths = {length for lengths in logits_lengths().values() for length in lengths} | {*tiny_models.GREEDY_LENGTHS}
    write(PROMPTS_FILE, {str(n): generator.integers(0, COMMON["vocab_size"], n).tolist() for n in sorted(lengths)})
    logits = {f"logits/{n}": generator.standard_normal(n, np.float32) * 2 for n in tiny_models.VOCABULARIES}
    write(SAMPLING_FILE, logits)


def write(file: Path, recorded: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".npz":
        np.savez_compressed(file, **recorded)
    else:
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items())
        file.write_text(f"{{\n{lines}\n}}\n")


def logits_lengths() -> dict[str, tuple[int, ...]]:
    """By model, each length once."""
    lengths = tiny_models.FOLDERS | {name: variant.lengths for name, variant in tiny_models.VARIANTS.items()}
    return {name: tuple(sorted({*lengths})) for name, lengths in lengths.items() if lengths}


def references() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each file of references, and what transformers says now."""
    for name, lengths in logits_lengths().items():
        model = load(name)
        yield tiny_models.logits_file(name), {str(n): logits_of(model, tiny_models.prompt(n)) for n in lengths}
    yield GREEDY_FILE, dict(greedy_references())
    yield BEAMS_FILE, dict(beam_references())
    yield BFLOAT16_FILE, {name: bfloat16_errors(name) for name in tiny_models.BFLOAT16}
    yield HIDDEN_FILE, {name: hidden_of(load(name), tiny_models.HIDDEN_PROMPT) for name in tiny_models.HIDDEN}
    yield SAMPLING_FILE, dict(sampling_references())
    yield evaluation.RECORDED_FILE, dict(evaluation_references())


def load(name: str, dtype: str = "float32") -> Any:
    folder = tiny_models.folder(name)
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, token_ids: list[int]) -> np.ndarray:
    """float32 [T, V]"""
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def hidden_of(model, length: int) -> np.ndarray:
    """float32 [T, D], after the final norm"""
    token_ids = torch.tensor([tiny_models.prompt(length)])
    return model.model(token_ids, use_cache=False).last_hidden_state[0].float().numpy()


def greedy_references() -> Iterator[tuple[str, list[int]]]:
    for name in tiny_models.GREEDY:
        model = load(name)
        for prompt in tiny_models.prompts(tiny_models.GREEDY_LENGTHS):
            yield f"{name}/{len(prompt)}", generate(model, prompt, tiny_models.GREEDY_TOKENS)


def generate(model, prompt: list[int], num_tokens: int) -> list[int]:
    options = dict(do_sample=False, pad_token_id=0, eos_token_id=None, return_dict_in_generate=True, output_logits=True)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, **options)
    best = torch.stack(out.logits)[:, 0].topk(2).values
    if (gap := float((best[:, 0] - best[:, 1]).min())) < GREEDY_GAP:
        name = Path(model.name_or_path).name
        sys.exit(f"{name}: after the prompt of {len(prompt)} the best two tokens differ by {gap}: change a seed")
    return out.sequences[0, len(prompt) :].tolist()


def beam_references() -> Iterator[tuple[str, Any]]:
    """By search the answers, filled up with -1, and their scores; by model the tokens that end answers."""
    for name in tiny_models.BEAM_MODELS:
        model = load(name)
        answers, _ = beam_search(model, [], 4, 1.0)
        stop_ids = [answers[0][-3], answers[1][3]]
        yield f"{name}/stop_ids", stop_ids
        for num_stop_ids, num_beams, length_penalty in tiny_models.BEAM_SEARCHES:
            answers, scores = beam_search(model, stop_ids[:num_stop_ids], num_beams, length_penalty)
            key = tiny_models.beams_key(name, num_stop_ids, num_beams, length_penalty)
            yield f"{key}/answers", answers
            yield f"{key}/scores", scores


def beam_search(
    model, stop_ids: list[int], num_beams: int, length_penalty: float
) -> tuple[list[list[int]], list[float]]:
    options = dict(do_sample=False, early_stopping=False, pad_token_id=0, return_dict_in_generate=True)
    prompt = tiny_models.prompt(tiny_models.BEAM_PROMPT)
    out = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=tiny_models.BEAM_TOKENS,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        length_penalty=length_penalty,
        eos_token_id=stop_ids or None,
        output_scores=True,
        **options,
    )
    answers = out.sequences[:, len(prompt) :].tolist()
    for answer in answers:
        end = next((place for place, token in enumerate(answer, 1) if token in stop_ids), len(answer))
        answer[end:] = [-1] * (len(answer) - end)
    return answers, out.sequences_scores.tolist()


def bfloat16_errors(name: str) -> list[float]:
    """How far torch in bfloat16 is from float32."""
    prompts = tiny_models.prompts(LENGTHS)
    exact, rounded = (
        np.concatenate([logits_of(load(name, dtype), prompt) for prompt in prompts])
        for dtype in ("float32", "bfloat16")
    )
    return tiny_models.errors(rounded, exact)


def sampling_references() -> Iterator[tuple[str, np.ndarray]]:
    inputs = {key: logits for key, logits in tiny_models.load(SAMPLING_FILE).items() if key.startswith("logits/")}
    yield from inputs.items()
    for logits in inputs.values():
        for temperature, top_k, top_p in tiny_models.SAMPLING:
            warpers = hf.LogitsProcessorList([hf.TemperatureLogitsWarper(temperature)])
            if top_k:
                warpers.append(hf.TopKLogitsWarper(top_k))
            if top_p < 1:
                warpers.append(hf.TopPLogitsWarper(top_p))
            warped = warpers(torch.zeros((1, 1), dtype=torch.long), torch.tensor(logits[None]))
            key = tiny_models.sampling_key(logits.size, temperature, top_k, top_p)
            yield key, torch.softmax(warped.double(), dim=-1)[0].float().numpy()


def evaluation_references() -> Iterator[tuple[str, Any]]:
    """Per choice its loglikelihood and whether it is greedy, 0 or 1; loglikelihoods of texts; the ids of answers."""
    model = load(evaluation.MODEL)
    for number, document in enumerate(evaluation.documents("choices")):
        yield f"choices/{number}", [loglikelihood(model, *choice) for choice in evaluation.choices(document)]
    for number, document in enumerate(evaluation.documents("texts")):
        windows = evaluation.windows(document["text"])
        yield f"texts/{number}", sum(loglikelihood(model, *window)[0] for window in windows)
    num_tokens = evaluation.generation_settings()["max_gen_toks"]
    for number, document in enumerate(evaluation.documents("answers")):
        yield f"answers/{number}", generate(model, [*document["prompt"].encode()], num_tokens)


def loglikelihood(model, token_ids: list[int], num_scored: int) -> tuple[float, int]:
    logprobs = torch.tensor(logits_of(model, token_ids)).double().log_softmax(dim=-1)[-num_scored - 1 : -1]
    scored = torch.tensor(token_ids[-num_scored:])
    return float(logprobs.gather(1, scored[:, None]).sum()), int((logprobs.argmax(dim=-1) == scored).all())


def record() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    record_models()
    record_inputs()
    for file, computed in references():
        write(file, computed)


def differences() -> Iterator[str]:
    computed_files = {PROMPTS_FILE}
    for file, computed in references():
        computed_files.add(file)
        recorded = tiny_models.load(file) if file.exists() else {}
        tolerance = TOLERANCES.get(file.name) or TOLERANCES[file.suffix]
        for key in computed.keys() | recorded.keys():
            if not equal(recorded.get(key), computed.get(key), **tolerance):
                yield f"{file.relative_to(DATA)}: {key}"
    for file in {*DATA.glob("*.*"), *DATA.glob("logits/*")} - computed_files:
        yield f"{file.relative_to(DATA)}: nothing asks for it"
    for name in {folder.parent.name for folder in DATA.glob("*/config.json")} | CONFIGS.keys():
        if not saved_as_asked(name):
            yield f"{name}/config.json"


def saved_as_asked(name: str) -> bool:
    if name not in CONFIGS or not (DATA / name).exists():
        return False
    saved, asked = hf.AutoConfig.from_pretrained(DATA / name).to_dict(), make_config(name).to_dict()
    return all(saved[key] == asked[key] for key in asked if key not in ("architectures", "dtype", "_name_or_path"))


def equal(recorded: Any, computed: Any, **tolerance) -> bool:
    if recorded is None or computed is None or np.shape(recorded) != np.shape(computed):
        return False
    return np.allclose(recorded, computed, **tolerance)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    if not arguments.check:
        record()
    if found := sorted(differences()):
        sys.exit("not what transformers says now:\n" + "\n".join(found))
