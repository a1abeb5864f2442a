"""A Store whose checkpoints are files that say what is wrong with them, or nothing."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.toy_runner import ToyRunner
from xlaserve.errors import CheckpointError


@dataclass
class ToyCheckpoint:
    source: str
    fault: str = ""  # found when it is read


class ToyStore:
    """both_fit: whether there is memory for two sets of weights. `reading`, cleared: reading waits until it is set."""

    def __init__(self, runner: ToyRunner, both_fit: bool = True):
        self.current = ToyCheckpoint("at start")
        self.reading = threading.Event()
        self.reading.set()
        self.both_fit = both_fit
        self.most_at_once = 1
        self._runner = runner

    def open(self, path: Path) -> ToyCheckpoint:
        text = path.read_text()
        if text.startswith("header"):
            raise CheckpointError(f"{path}: {text}")
        return ToyCheckpoint(str(path), text)

    def fits_beside(self) -> bool:
        return self.both_fit

    def load(self, checkpoint: ToyCheckpoint, version: int) -> None:
        self.reading.wait()
        if checkpoint.fault:
            raise CheckpointError(f"{checkpoint.source}: {checkpoint.fault}")
        self._runner.add_weights(version, checkpoint.source)
        self.most_at_once = max(self.most_at_once, len(self._runner.weights))

    def reload(self, version: int) -> None:
        self.load(self.current, version)


MakeStore = Callable[[ToyRunner], ToyStore]
