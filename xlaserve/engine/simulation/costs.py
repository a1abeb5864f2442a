"""What a step costs: a + b * tokens computed, padding included, + c * tokens of context read."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xlaserve.errors import ConfigError

_COLUMNS = ("padded_tokens", "context_tokens", "ms")


@dataclass(frozen=True)
class CostModel:
    """The defaults stand for Llama-3.1-8B in bfloat16 on one H100 SXM, and are worked out, not measured.

    From its data sheet, at 80% of 3.35 TB/s and 60% of 989 TFLOP/s: 16.06 GB of weights a step, 2 * 8.03 G operations a
    token, 128 KiB of keys and values per token of context.
    """

    step_ms: float = 6.0
    token_us: float = 27.0
    context_ns: float = 49.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value}: a cost must be a finite number >= 0")
        if self.step_ms + self.token_us == 0:
            raise ConfigError("step_ms and token_us are both 0: a step must cost something")

    def seconds(self, padded_tokens: int, context_tokens: int) -> float:
        return self.step_ms * 1e-3 + self.token_us * 1e-6 * padded_tokens + self.context_ns * 1e-9 * context_tokens


def fit_costs(path: Path) -> CostModel:
    """The least-squares fit to the steps in a JSON file: [{"padded_tokens": 256, "context_tokens": 9000, "ms": 13.2}].

    Raises ConfigError naming the file, the entry and the key; and where the steps do not tell the three costs apart.
    """
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(steps, list):
        raise ConfigError(f"{path}: expected a list of steps, found {type(steps).__name__}")
    rows = np.array([_measured(path, index, step) for index, step in enumerate(steps)]).reshape(-1, 3)
    factors = np.column_stack([np.ones(len(rows)), rows[:, :2]])
    scale = np.maximum(factors.max(axis=0, initial=0), 1)  # the columns differ by orders of magnitude
    solution, _, rank, _ = np.linalg.lstsq(factors / scale, rows[:, 2], rcond=None)
    if rank < 3:
        raise ConfigError(f"{path}: {len(rows)} steps do not tell the costs apart: vary tokens and context separately")
    a, b, c = (solution / scale).tolist()
    if min(a, b, c) < 0:
        found = f"step_ms {a:.3g}, token_us {b * 1e3:.3g}, context_ns {c * 1e6:.3g}"
        raise ConfigError(f"{path}: the best fit has a negative cost ({found}): measure more sizes, further apart")
    return CostModel(a, b * 1e3, c * 1e6)


def _measured(path: Path, index: int, step: object) -> list[float]:
    where = f"{path}: step {index}"
    if not isinstance(step, dict) or set(step) != set(_COLUMNS):
        raise ConfigError(f"{where}: expected the keys {', '.join(_COLUMNS)}, found {str(step)[:80]}")
    for key in _COLUMNS:
        if isinstance(step[key], bool) or not isinstance(step[key], int | float) or not 0 <= step[key] < float("inf"):
            raise ConfigError(f"{where}: {key} is {str(step[key])[:80]!r}: expected a number >= 0")
    return [float(step[key]) for key in _COLUMNS]
