"""Draws what a real engine does with its KV blocks: the pictures of docs/memory.md.

    python -m benchmarks.memory_pictures [--out docs/images] [--model demo]

Needs the extra `bench`. The pools are tiny, so that one sees them fill. Requests arrive at given steps and their
answers have given lengths: every run draws the same, whatever the machine.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.memory_drawing import add_key, colours, draw_map, draw_tables, draw_usage, mark_events, save
from benchmarks.memory_recorder import Arrival, Moment, record
from xlaserve.engine.llm import LLM
from xlaserve.engine.service import GenerationService
from xlaserve.sampling_params import SamplingParams

SYSTEM = (
    "You are the assistant of a small library in a town by the sea. You answer in short and friendly sentences, and "
    "say so when you do not know something. The library is open from nine to five, on Saturdays until noon. Books may "
    "be kept for four weeks, films for one. Those who want to keep a book for longer call us, or come to the desk."
)
QUESTIONS = {
    "A": "Until when can I bring back the film that I took home on Monday, and where do I leave it?",
    "B": "How long may I keep a novel that a friend of mine has left at my house, and does it cost anything?",
    "C": "Do you have books about the birds that live on this coast, and may I read them in the garden?",
    "D": "Please write a short poem about the reading room in winter, when it snows and nobody comes in.",
}
SYSTEM_TOKENS, QUESTION_TOKENS = 70, 14  # four blocks and six tokens of a fifth; a prompt has 84
OTHER = (
    "Far from the sea, where the river comes down from the hills, there is a mill that has not turned for years now."
)

WINDOWED = {  # a small Gemma 3: two layers of three see 64 tokens only
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 256, "hidden_size": 48,
    "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 64,
    "query_pre_attn_scalar": 24, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
}  # fmt: skip
WINDOWED_PROMPT, WINDOWED_ANSWER = 256, 700  # tokens

SHARING_BLOCKS, PREEMPTION_BLOCKS, WINDOWED_BLOCKS = 25, 17, 65  # the null block included
STEP_TOKENS = 32


def answer(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.0)


def sharing(service: GenerationService) -> list[Moment]:
    """Four requests behind one system prompt, of which the last has four answers."""
    encode = service.tokenizer.encode
    system = encode(SYSTEM)[:SYSTEM_TOKENS]

    def ask(step: int, name: str, params: SamplingParams) -> Arrival:
        return Arrival(step, name, system + encode(QUESTIONS[name])[:QUESTION_TOKENS], params)

    four = replace(answer(44), n=4, temperature=1.0, seed=0)
    arrivals = [ask(0, "A", answer(40)), ask(24, "B", answer(46)), ask(46, "C", answer(60)), ask(76, "D", four)]
    return record(service, arrivals)


def preemption(service: GenerationService) -> list[Moment]:
    """Three requests that do not fit together."""
    tokens = service.tokenizer.encode(OTHER)
    prompts = [[token, *tokens[:20]] for token in tokens[1:4]]  # no two begin alike
    return record(service, [Arrival(10 * i, name, prompts[i], answer(76)) for i, name in enumerate("ABC")])


def windows(service: GenerationService) -> list[Moment]:
    """One long request, on layers with and without a window."""
    prompt = [7 + i % 200 for i in range(WINDOWED_PROMPT)]
    return record(service, [Arrival(0, "A", prompt, answer(WINDOWED_ANSWER))])


def run(scene: Callable[[GenerationService], list[Moment]], model: str, num_blocks: int, rows: int = 8) -> list[Moment]:
    settings = [f"cache.num_blocks={num_blocks}", "cache.block_size=16"]
    limits = [f"scheduler.max_num_seqs={rows}", f"scheduler.max_num_batched_tokens={STEP_TOKENS}"]
    with LLM(model, overrides=settings + limits) as llm:
        return scene(llm.service)


def fork_grown_apart(moments: Sequence[Moment]) -> Moment:
    """When each of the four answers has gone on to a block after the one that it had to copy."""
    return next(moment for moment in moments if "D" in moment.tables and len(moment.tables["D"][0]) > 6)


def draw_all(folder: Path, shared: Sequence[Moment], preempted: Sequence[Moment], windowed: Sequence[Moment]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = new_figure(6)
    draw_map(axes, shared, "The pool, step by step: four requests behind one system prompt, the last with four answers")
    mark_events(axes, shared)
    add_key(axes, shared)
    save(figure, folder / "memory-map.png")

    figure, axes = new_figure(5.5, width=9)
    draw_tables(axes, fork_grown_apart(shared), colours(shared))
    save(figure, folder / "memory-tables.png")

    figure, axes = new_figure(4)
    draw_map(axes, preempted, "Not enough for three: C loses its blocks, and later finds most of them again")
    mark_events(axes, preempted)
    add_key(axes, preempted)
    save(figure, folder / "memory-preemption.png")

    figure = Figure(figsize=(11, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    title = f"A prompt of {WINDOWED_PROMPT} tokens, an answer of {WINDOWED_ANSWER}"
    draw_usage(upper, windowed, ("full layers", "layers with a window of 64 tokens"), title)
    draw_map(lower, windowed[:160], "The pool of the layers with a window, the first 160 steps", group=1)
    add_key(lower, windowed)
    save(figure, folder / "memory-windows.png")


def new_figure(height: float, width: float = 11) -> tuple[Figure, Axes]:
    """In inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--model", default="demo")
    args = parser.parse_args()
    shared = run(sharing, args.model, SHARING_BLOCKS)
    preempted = run(preemption, args.model, PREEMPTION_BLOCKS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(WINDOWED))
        windowed = run(windows, f"random:{file}", WINDOWED_BLOCKS, rows=1)
    draw_all(args.out, shared, preempted, windowed)


if __name__ == "__main__":
    main()
