"""The whole body of Llama-3.1-8B, compiled for chips that are not here, against the least that it has to do.

    python -m benchmarks.roofline [--targets h100 v5e:8 ...] [--weights int8]   # v5e:8: tensor parallel, 8 devices

Two steps, each with a context of 2,048 tokens in each of 64 rows: a decode, and 1,024 tokens that mix 63 decodes with a
chunk of a prompt. Each in bfloat16, and with weights of the layers and what they are multiplied with in int8. Of the
machine code: the memory for temporaries; copies, transposes, slices and the like above 1 MiB; fusions, collectives, and
on GPUs what command buffers hold. Of arithmetic: the least time, per device, to read the weights and the live keys and
values once and to write and read activations, and to compute all products at the chip's peak of their dtype (bfloat16's
for int8 where the vendor states none). How long a program takes its text does not tell: nothing is executed. Ends with
exit code 1 if a program does not compile, or moves a weight or the KV pool.
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
from itertools import product
from math import prod
from pathlib import Path
from typing import TextIO

from benchmarks.aot import gpu_code
from benchmarks.aot.body import GROUP_SIZE, Step, compile_body, in_layers, read_config
from benchmarks.aot.hlo import Movement, Program
from xlaserve.layers.params import named_specs
from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import FAMILIES
from xlaserve.targets import find_chip

MIB = 2**20
ITEMSIZE = 2  # bfloat16
FLOAT32 = 4  # bytes, of a scale
ROWS, CONTEXT = 64, 2048
STEPS = {"decode": Step(ROWS, ROWS, CONTEXT), "mixed": Step(1024, ROWS, CONTEXT)}
TARGETS = ("h100", "h200", "b200", "v5e:8", "v6e:8", "v7x")
WEIGHTS = ("bfloat16", "int8")
HEADER = """\
| target | step | weights | seconds | temporaries (MiB) | moves > 1 MiB | of weights or KV | fusions / layer | \
collectives | command buffers | least ms: bandwidth | arithmetic | compiler's bytes / least |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Least:
    """What one device has to do in a step, with an equal share of the weights and heads."""

    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    product_operations: float  # with weights
    attention_operations: float  # in bfloat16
    int8: bool = False

    @property
    def operations(self) -> float:
        return self.product_operations + self.attention_operations

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    def milliseconds(self, target: str) -> tuple[float, float]:
        """(by bandwidth, by arithmetic) on one device."""
        chip = find_chip(target)
        product_rate = chip.int8 or chip.bf16 if self.int8 else chip.bf16
        arithmetic = self.product_operations / product_rate + self.attention_operations / chip.bf16
        share = 1e3 * chip.devices_per_chip
        return share * self.bytes / chip.hbm_bandwidth, share * arithmetic


def least(config: ModelConfig, step: Step, num_devices: int, *, int8: bool = False) -> Least:
    """Of the rows all but one decode a token; the last has the step's other tokens; all end at the full context.

    Activations: each product's input and output, once; of the embeddings only the rows asked for. `int8`: weights with
    a scale per output, inputs with one per group.
    """
    matrices = [spec.shape for name, spec in named_specs(FAMILIES[config.family].param_specs(config))
                if in_layers(name, spec)]  # fmt: skip
    weights = sum(map(prod, matrices))
    kv_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    chunk = step.num_tokens - step.num_rows + 1
    seen = step.num_tokens * step.context - chunk * (chunk - 1) // 2  # pairs of a query and a key
    attention = 4 * seen * config.num_heads * config.head_dim * config.num_layers
    outputs, inputs = map(sum, zip(*matrices, strict=True))
    input_bytes = inputs * (1 + FLOAT32 / GROUP_SIZE if int8 else ITEMSIZE)
    output_bytes = (outputs + 2 * config.hidden_size) * ITEMSIZE
    return Least(
        weight_bytes=(weights + FLOAT32 * outputs if int8 else weights * ITEMSIZE) / num_devices,
        kv_bytes=(step.num_rows * step.context + step.num_tokens) * kv_per_token * ITEMSIZE / num_devices,
        activation_bytes=step.num_tokens * (input_bytes + output_bytes) / num_devices,
        product_operations=2 * step.num_tokens * weights / num_devices,
        attention_operations=attention / num_devices,
        int8=int8,
    )


def of_weights_or_kv(movements: list[Movement]) -> list[Movement]:
    return [move for move in movements if any(path.startswith(("params", "kv_caches")) for path in move.sources)]


def audit(config: ModelConfig, target: str, num_devices: int, step: Step, *, int8: bool) -> tuple[str, list[Movement]]:
    """(the line's cells after the weights' dtype, all movements)"""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        compiled = compile_body(config, target, step, int8=int8, num_devices=num_devices, dump_to=folder)
        seconds = time.perf_counter() - start
        cuda = find_chip(target).platform == "cuda"
        commands = describe(gpu_code.commands(Path(folder))) if cuda else "-"
    program, memory = Program(compiled.as_text()), compiled.memory_analysis()
    assert memory is not None  # None only of backends that keep no account
    movements, minimum = program.movements(), least(config, step, num_devices, int8=int8)
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
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--layers", type=int, help="fewer of them: enough to see what a layer does")
    parser.add_argument("--out", type=Path, help="write the report there, not to the standard output")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") if options.out else nullcontext(sys.stdout) as file:
        failed = report(file, options.targets, options.weights, options.layers)
    raise SystemExit(1 if failed else 0)


def report(file: TextIO, names: Iterable[str], dtypes: Iterable[str], num_layers: int | None) -> bool:
    """Writes the report; returns whether something failed."""
    config = read_config(num_layers=num_layers)
    print(
        f"{config.num_layers} layers, jax {version('jax')}: compiled, not executed.\n\n{HEADER}", file=file, flush=True
    )
    listings, failed = [], False
    for name, dtype, (label, step) in product(names, dtypes, STEPS.items()):
        target, _, count = name.partition(":")
        line = f"| {name} | {label} | {dtype} |"
        try:
            cells, movements = audit(config, target, int(count or 1), step, int8=dtype == "int8")
        except Exception as error:  # of whatever kind: it is a line of the table
            print(f"{line} **{type(error).__name__}**: {' '.join(str(error).split())[:200]} |", file=file, flush=True)
            failed = True
            continue
        print(f"{line} {cells} |", file=file, flush=True)
        listings += [f"- {name}, {label}, {dtype}: {line}" for line in listing(movements)]
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
