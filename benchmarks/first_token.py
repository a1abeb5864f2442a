"""Seconds from starting the command of `make demo` to the first byte of its answer: cold, then warm.

    python -m benchmarks.first_token

Cold: no compiled program is cached (the model is there). Warm: the same again, with what the first run has cached.
Prints one JSON line.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from xlaserve.cli.options import cache_dir
from xlaserve.models.sources import fetch

GENERATE = ["generate", "--model", "demo", "--chat", "--stream", "--temperature", "0", "--prompt"]
PROMPT = "Explain in two sentences why the sky is blue."
_MAIN = "from xlaserve.cli.main import main; main(prog_name='xlaserve')"


def first_byte_seconds(cache: Path) -> float:
    command = [sys.executable, "-c", _MAIN, *GENERATE, PROMPT]
    start = time.perf_counter()
    environment = os.environ | {"XLASERVE_CACHE": str(cache)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not first or process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    return seconds


def main() -> None:
    model = fetch("demo", cache_dir=cache_dir())
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        (models / model.name).symlink_to(model)
        cold, warm = first_byte_seconds(Path(folder)), first_byte_seconds(Path(folder))
    print(json.dumps({"benchmark": "first_token", "cold_s": round(cold, 1), "warm_s": round(warm, 1)}))


if __name__ == "__main__":
    main()
