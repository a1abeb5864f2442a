"""Random tiny models, one per family and per trap, and what transformers with torch says of them.

Both are in tests/data/tiny, written by `python -m tests.record_tiny_models`; only that needs torch.
"""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only where numpy knows it
import numpy as np
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parent / "data" / "tiny"
PROMPTS_FILE = DATA / "prompts.json"
GREEDY_FILE = DATA / "greedy.json"
BEAMS_FILE = DATA / "beams.json"
BFLOAT16_FILE = DATA / "bfloat16.json"
SAMPLING_FILE = DATA / "sampling.npz"
HIDDEN_FILE = DATA / "hidden.npz"

Tensors = dict[str, np.ndarray]

LENGTHS = (1, 15, 16, 17, 40)
AROUND_THE_WINDOW = (7, 8, 9, 40)
FAR_BEYOND = (251,)  # the original context of the scaled ropes, 64
FOLDERS = {  # saved by transformers, with the lengths of the prompts whose logits are recorded
    "llama": LENGTHS,
    "llama-tied": LENGTHS,
    "llama-biases": LENGTHS,
    "llama-wide-heads": LENGTHS,
    "llama-mqa": LENGTHS,
    "mistral": LENGTHS + AROUND_THE_WINDOW,
    "mistral-window": LENGTHS + AROUND_THE_WINDOW,
    "qwen2": LENGTHS + AROUND_THE_WINDOW,
    "qwen2-window": LENGTHS + AROUND_THE_WINDOW,
    "qwen3": LENGTHS,
    "gemma3": LENGTHS + AROUND_THE_WINDOW,
    "gemma3-for-gguf": LENGTHS,
}
SHARDED = "llama-sharded"


@dataclass(frozen=True)
class Variant:
    """The folder `base` with some keys of its config.json set or removed, and its tensors changed."""

    base: str
    lengths: tuple[int, ...]
    keys: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    change: Callable[[Tensors], Tensors] | None = None
    as_base: bool = False  # all this changes nothing for transformers: one recording holds for both


def _unchanged(base: str, **changes) -> Variant:
    return Variant(base, FOLDERS[base], **changes, as_base=True)


def _head(scale: float) -> Callable[[Tensors], Tensors]:
    """Stores a head beside the embeddings."""

    def add(tensors: Tensors) -> Tensors:
        embeddings = tensors["model.embed_tokens.weight"]
        return tensors | {"lm_head.weight": (embeddings * np.float32(scale)).astype(embeddings.dtype)}

    return add


def _without_head(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def _rope(**parameters) -> Variant:
    length = {"max_position_embeddings": 256} if parameters["rope_type"] == "yarn" else {}
    return Variant("llama", LENGTHS + FAR_BEYOND, {"rope_parameters": parameters} | length)


_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
ROPES = {
    "llama-linear": _rope(rope_type="linear", rope_theta=10000.0, factor=4.0),
    "llama-llama3": _rope(
        rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "llama-yarn": _rope(**_YARN),
    "llama-yarn-factor": _rope(**_YARN, attention_factor=1.5),
    "llama-yarn-mscale": _rope(**_YARN, mscale=1.2, mscale_all_dim=0.7, beta_fast=16.0, beta_slow=2.0),
}  # fmt: skip
WINDOWED = {
    "qwen2-window-all-full": Variant("qwen2-window", AROUND_THE_WINDOW, {"layer_types": ["full_attention"] * 3}),
    "gemma3-all-full": Variant("gemma3", AROUND_THE_WINDOW, {"layer_types": ["full_attention"] * 3}),
    "gemma3-all-sliding": Variant("gemma3", AROUND_THE_WINDOW, {"layer_types": ["sliding_attention"] * 3}),
    "gemma3-pattern-of-2": Variant(
        "gemma3", AROUND_THE_WINDOW, {"sliding_window_pattern": 2}, removed=("layer_types",)
    ),
    "mistral-window-null": Variant("mistral-window", AROUND_THE_WINDOW, {"sliding_window": None}),
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
WITH_HEADS = ("llama-tied", "qwen2", "gemma3")
VARIANTS = {
    **ROPES,
    **WINDOWED,
    "gemma3-softcap": Variant("gemma3", LENGTHS, {"query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0}),
    **{f"{base}-null-head-size": _unchanged(base, keys={"head_dim": None}) for base in ("llama", "llama-mqa")},
    **{f"{base}-absent-head-size": _unchanged(base, removed=("head_dim",)) for base in ("llama", "llama-mqa")},
    **{f"{base}-equal-head": _unchanged(base, keys=TIED, change=_head(1.0)) for base in ("llama-tied", "gemma3")},
    "qwen2-equal-head": Variant("qwen2", LENGTHS, TIED, change=_head(1.0)),  # its own head is another
    **{f"{base}-different-head": Variant(base, LENGTHS, TIED, change=_head(1.5)) for base in WITH_HEADS},
    "llama-tied-biases": Variant("llama-biases", (), TIED, change=_without_head),
}

GREEDY = ["llama", "llama-tied", "llama-biases", "mistral-window", "qwen2", "qwen2-window", "qwen3", "gemma3"]
GREEDY_LENGTHS = (*LENGTHS, 2, 20, 31, 33)
GREEDY_TOKENS = 20
BEAM_MODELS = ["llama", "qwen2-window", "gemma3"]
BEAM_PROMPT = 17  # tokens: its last block is partly filled
BEAM_TOKENS = 12
BEAM_SEARCHES = [  # how many tokens end an answer, num_beams, length_penalty
    (num_stop_ids, num_beams, length_penalty)
    for num_stop_ids in (0, 1, 2)
    for num_beams in (2, 3, 4)
    for length_penalty in (0.0, 1.0, 2.0)
]
HIDDEN = ["llama", "mistral-window", "gemma3"]
HIDDEN_PROMPT = 40  # tokens; what precedes a position is all that its hidden state depends on
BFLOAT16 = ["llama", "qwen3", "gemma3"]

VOCABULARIES = (5, 300, 2000)
SAMPLING = (  # temperature, top_k, top_p
    (1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.6), (1.3, 40, 0.8), (1.0, 200, 0.99), (1.0, 0, 0.999),
)  # fmt: skip


@functools.cache
def _scratch() -> Path:
    """A folder that goes with the process."""
    folder = tempfile.mkdtemp(prefix="tiny-models-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def folder(name: str) -> Path:
    """The folder of a model: to be read, not to be written. A variant is made from its base when first asked for."""
    if name not in VARIANTS:
        return DATA / name
    variant = VARIANTS[name]
    made = shutil.copytree(DATA / variant.base, _scratch() / name)
    config = json.loads((made / "config.json").read_text()) | variant.keys
    (made / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in variant.removed}))
    if variant.change:
        file = made / "model.safetensors"
        save_file(variant.change(load_file(file)), file, metadata={"format": "pt"})
    return made


def read(name: str) -> tuple[dict[str, Any], Tensors]:
    """(config.json, the tensors in float32)"""
    config = json.loads((folder(name) / "config.json").read_text())
    tensors = load_file(folder(name) / "model.safetensors")
    return config, {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def load(file: Path) -> dict[str, Any]:
    """What is recorded in the file: arrays or JSON by key."""
    if file.suffix == ".json":
        return json.loads(file.read_text())
    with np.load(file) as arrays:
        return dict(arrays)


@functools.cache
def prompt(length: int) -> list[int]:
    return load(PROMPTS_FILE)[str(length)]


def prompts(lengths: Iterable[int]) -> list[list[int]]:
    return [prompt(length) for length in lengths]


def logits_file(name: str) -> Path:
    variant = VARIANTS.get(name)
    return DATA / "logits" / f"{variant.base if variant and variant.as_base else name}.npz"


def logits(name: str, lengths: Iterable[int]) -> list[np.ndarray]:
    """transformers' logits at every position of the prompts of these lengths, each float32 [T, V]."""
    recorded = load(logits_file(name))
    return [recorded[str(length)] for length in lengths]


def logprobs(name: str) -> tuple[list[int], np.ndarray]:
    """A prompt, and transformers' log_softmax at each of its positions, float64 [T, V]; any beginning of it will do."""
    (found,) = logits(name, [40])
    exact = found.astype(np.float64)
    return prompt(40), exact - np.logaddexp.reduce(exact, axis=-1, keepdims=True)


def hidden(name: str) -> tuple[list[int], np.ndarray]:
    """A prompt, and transformers' hidden states after the final norm, float32 [T, D]; any beginning of it will do."""
    return prompt(HIDDEN_PROMPT), load(HIDDEN_FILE)[name]


def greedy(name: str, lengths: Iterable[int], num_tokens: int = GREEDY_TOKENS) -> list[list[int]]:
    """What transformers' generate() makes of the prompts of these lengths."""
    recorded = load(GREEDY_FILE)
    return [recorded[f"{name}/{length}"][:num_tokens] for length in lengths]


def beams_key(name: str, num_stop_ids: int, num_beams: int, length_penalty: float) -> str:
    return f"{name}/{num_stop_ids}/{num_beams}/{length_penalty}"


def errors(logits: np.ndarray, exact: np.ndarray) -> list[float]:
    """Over positions: the median and the maximum of the largest error, and the share that has the right argmax."""
    largest = np.abs(logits - exact).max(axis=-1)
    return [float(np.median(largest)), float(largest.max()), float((logits.argmax(-1) == exact.argmax(-1)).mean())]


def sampling_key(vocabulary: int, temperature: float, top_k: int, top_p: float) -> str:
    return f"probabilities/{vocabulary}/{temperature}/{top_k}/{top_p}"
