"""The whole body of Llama-3.1-8B, compiled for chips that are not here, against the least that it has to do.

    python -m benchmarks.roofline [--targets h100 v5e:8 ...]      # v5e:8 is tensor parallel over 8 devices

Two steps, each with a context of 2,048 tokens in each of 64 rows: a decode, and 1,024 tokens that mix 63 decodes with a
chunk of a prompt. Of the machine code: the memory for temporaries; copies, transposes, slices and the like above 1 MiB;
fusions, collectives, and on GPUs what command buffers hold. Of arithmetic: the least time, per device, to read the
weights and the live keys and values once and to write and read activations, and to compute all products at the chip's
peak. How long a program takes its text does not tell: nothing is executed. Ends with exit code 1 if a program does not
compile, or moves a weight or the KV pool.
"""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TextIO

from benchmarks.aot import gpu_code, targets
from benchmarks.aot.body import Step, compile_body, read_config
from benchmarks.aot.hlo import Movement, Program
from xlaserve.layers.params import named_specs
from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import FAMILIES

MIB = 2**20
ITEMSIZE = 2  # bfloat16
ROWS, CONTEXT = 64, 2048
STEPS = {"decode": Step(ROWS, ROWS, CONTEXT), "mixed": Step(1024, ROWS, CONTEXT)}
TARGETS = ("h100", "h200", "b200", "v5e:8", "v6e:8", "v7x")
HEADER = """\
| target | step | seconds | temporaries (MiB) | moves > 1 MiB | of weights or KV | fusions / layer | collectives | \
command buffers | least ms: bandwidth | arithmetic | compiler's bytes / least |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Least:
    """What one device has to do in a step, with an equal share of the weights and heads."""

    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    operations: float

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    def milliseconds(self, target: str) -> tuple[float, float]:
        """(by bandwidth, by arithmetic) on one device."""
        chip = targets.find(target)
        bandwidth, rate = chip.hbm_bandwidth / chip.devices_per_chip, chip.bf16 / chip.devices_per_chip
        return self.bytes / bandwidth * 1e3, self.operations / rate * 1e3


def least(config: ModelConfig, step: Step, num_devices: int) -> Least:
    """Of the rows all but one decode a token; the last has the step's other tokens; all end at the full context.

    Activations: each product's input and output, once; of the embeddings only the rows asked for.
    """
    matrices = [spec.shape for name, spec in named_specs(FAMILIES[config.family].param_specs(config))
                if len(spec.shape) == 2 and ".layers." in name]  # fmt: skip
    weights = sum(map(prod, matrices))
    kv_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    chunk = step.num_tokens - step.num_rows + 1
    seen = step.num_tokens * step.context - chunk * (chunk - 1) // 2  # pairs of a query and a key
    attention = 4 * seen * config.num_heads * config.head_dim * config.num_layers
    activations = step.num_tokens * (sum(out + into for out, into in matrices) + 2 * config.hidden_size)
    return Least(
        weight_bytes=weights * ITEMSIZE / num_devices,
        kv_bytes=(step.num_rows * step.context + step.num_tokens) * kv_per_token * ITEMSIZE / num_devices,
        activation_bytes=activations * ITEMSIZE / num_devices,
        operations=(2 * step.num_tokens * weights + attention) / num_devices,
    )


def of_weights_or_kv(movements: list[Movement]) -> list[Movement]:
    return [move for move in movements if any(path.startswith(("params", "kv_caches")) for path in move.sources)]


def audit(config: ModelConfig, target: str, num_devices: int, step: Step) -> tuple[str, list[Movement]]:
    """(the line's cells after the step's name, all movements)"""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        compiled = compile_body(config, target, step, num_devices=num_devices, dump_to=folder)
        seconds = time.perf_counter() - start
        cuda = targets.find(target).platform == "cuda"
        commands = describe(gpu_code.commands(Path(folder))) if cuda else "-"
    program, memory = Program(compiled.as_text()), compiled.memory_analysis()
    assert memory is not None  # None only of backends that keep no account
    movements, minimum = program.movements(), least(config, step, num_devices)
    bad = of_weights_or_kv(movements)
    bandwidth, arithmetic = minimum.milliseconds(target)
    counted = (compiled.cost_analysis() or {}).get("bytes accessed")
    cells = [
        f"{seconds:.0f}", f"{memory.temp_size_in_bytes / MIB:.0f}", total(movements), total(bad),
        f"{program.fusions() / config.num_layers:.1f}", describe_collectives(program, config.num_layers), commands,
        f"{bandwidth:.2f}", f"{arithmetic:.2f}", f"{counted / minimum.bytes:.2f}" if counted else "-",
    ]  # fmt: skip
    return " | ".join(cells), movements


def total(movements: list[Movement]) -> str:
    return f"{len(movements)}: {sum(move.bytes for move in movements) / MIB:.0f} MiB" if movements else "none"


def describe(commands: gpu_code.Commands) -> str:
    return f"{commands.buffers}, holding {commands.inside} commands; {len(commands.outside)} outside"


def describe_collectives(program: Program, num_layers: int) -> str:
    found = program.collectives()
    in_layers = sum("decoder_layer" in instruction.op_name for instruction in found)
    return f"{in_layers / num_layers:g} / layer + {len(found) - in_layers}" if found else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="NAME[:DEVICES]")
    parser.add_argument("--layers", type=int, help="fewer of them: enough to see what a layer does")
    parser.add_argument("--out", type=Path, help="write the report there, not to the standard output")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") if options.out else nullcontext(sys.stdout) as file:
        failed = report(file, options.targets, options.layers)
    raise SystemExit(1 if failed else 0)


def report(file: TextIO, names: Iterable[str], num_layers: int | None) -> bool:
    """Writes the report; returns whether something failed."""
    config = read_config(num_layers=num_layers)
    print(
        f"{config.num_layers} layers, bfloat16, jax {version('jax')}: compiled, not executed.\n\n{HEADER}", flush=True
    )
    listings, failed = [], False
    for name in names:
        target, _, count = name.partition(":")
        for label, step in STEPS.items():
            line = f"| {name} | {label} |"
            try:
                cells, movements = audit(config, target, int(count or 1), step)
            except Exception as error:  # of whatever kind: it is a line of the table
                print(
                    f"{line} **{type(error).__name__}**: {' '.join(str(error).split())[:200]} |", file=file, flush=True
                )
                failed = True
                continue
            print(f"{line} {cells} |", file=file, flush=True)
            listings += [f"- {name}, {label}: {line}" for line in listing(movements)]
            failed |= bool(of_weights_or_kv(movements))
    print("\nWhat is moved:\n\n" + ("\n".join(listings) or "nothing above 1 MiB"), file=file)
    return failed


def listing(movements: list[Movement]) -> list[str]:
    """Like ones of different layers together."""
    alike = Counter((move.opcode, without_layers(move.sources), f"{move.bytes / MIB:.1f} MiB") for move in movements)
    return [f"{count} x {opcode} of {what}, {size}" for (opcode, what, size), count in alike.items()]


def without_layers(paths: Iterable[str]) -> str:
    return ", ".join(sorted({re.sub(r"\[\d+\]", "[*]", path) for path in paths})) or "an intermediate result"


if __name__ == "__main__":
    main()
