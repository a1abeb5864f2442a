"""What a model can be named by: demo, a folder, a GGUF file, a hub id, or random: and a config."""

import re
from pathlib import Path

from xlaserve.config import ModelSection
from xlaserve.errors import CheckpointError, ConfigError
from xlaserve.models import hub
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.demo_model import fetch_demo
from xlaserve.models.fields import Fields
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.quantized_checkpoint import QuantizedCheckpoint
from xlaserve.models.quantized_config import parse_quantization
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.safetensors_folder import SafetensorsFolder, read_json

DEMO = "demo"
_RANDOM = "random:"
_HUB_ID = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<file>[\w./-]+\.gguf))?")


def _silent(text: str) -> None:
    pass


def resolve(section: ModelSection, *, cache_dir: Path, seed: int, announce: hub.Announce = _silent) -> Checkpoint:
    """Opens the model that `section.source` names, downloading it when it must be.

    `cache_dir` keeps the demo model; hub ids use the hub's own cache; `seed` is that of random weights;
    `announce` is called with a line of text before a download. Raises CheckpointError (ConfigError for a revision where
    there are none).
    """
    source = section.source
    if source.startswith(_RANDOM):
        _refuse_revision(source, section.revision)
        return RandomCheckpoint(Path(source.removeprefix(_RANDOM)).expanduser(), seed)
    return open_local(fetch(source, revision=section.revision, cache_dir=cache_dir, announce=announce), source)


def open_local(path: Path, source: str) -> Checkpoint:
    """A folder or a .gguf file, named `source` by the user. Raises CheckpointError."""
    if path.is_file():
        return GGUFFile(path, source)
    gguf_files = sorted(path.glob("*.gguf"))
    if gguf_files and not (path / "config.json").exists():
        raise CheckpointError(f"{path}: has no config.json; to serve a GGUF file, name the file: {gguf_files[0]}")
    folder = SafetensorsFolder(path, source)
    quantization = parse_quantization(Fields(folder.config, folder.where))
    return folder if quantization is None else QuantizedCheckpoint(folder, quantization)


def read_config(section: ModelSection, *, cache_dir: Path, announce: hub.Announce = _silent) -> tuple[dict, str]:
    """A model's config.json, and where it is from, for messages. Of a hub id nothing else is downloaded.

    Raises as `resolve` does.
    """
    source, hub_id = section.source, _HUB_ID.fullmatch(section.source)
    if hub_id and not hub_id["file"] and not Path(source).expanduser().exists() and not _looks_like_path(source):
        file = hub.fetch_file(source, "config.json", section.revision, announce)
        return read_json(file, required=True), str(file)
    path = None if source.startswith(_RANDOM) or source == DEMO else Path(source).expanduser()
    if path is not None and (path / "config.json").is_file():
        _refuse_revision(source, section.revision)
        return read_json(path / "config.json", required=True), str(path / "config.json")
    checkpoint = resolve(section, cache_dir=cache_dir, seed=0, announce=announce)
    return checkpoint.config, checkpoint.where


def fetch(source: str, *, cache_dir: Path, revision: str | None = None, announce: hub.Announce = _silent) -> Path:
    """The local folder or file of a source, downloaded if it is not there yet. Raises as `resolve` does."""
    path = Path(source).expanduser()
    hub_id = _HUB_ID.fullmatch(source)
    if hub_id and not path.exists() and not _looks_like_path(source):
        if hub_id["file"]:
            return hub.fetch_file(hub_id["repo"], hub_id["file"], revision, announce)
        return hub.fetch_folder(hub_id["repo"], revision, announce)
    _refuse_revision(source, revision)
    if source == DEMO:
        return fetch_demo(cache_dir, announce)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise CheckpointError(f"{path}: is neither a folder nor a .gguf file")
    raise CheckpointError(
        f"model {source!r}: there is no such file or folder ({path.absolute()}); expected demo, a Hugging Face folder, "
        "a .gguf file, a hub id (org/name or org/name:file.gguf) or random:config.json"
    )


def default_name(source: str) -> str:
    """The name a model is served under when none is set: the last part of its source, without .gguf."""
    source = source.removeprefix(_RANDOM).removesuffix("config.json").rstrip("/")
    return re.split(r"[/:]", source)[-1].removesuffix(".gguf").removesuffix(".json") or "model"


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or (source.endswith(".gguf") and ":" not in source)


def _refuse_revision(source: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(f"model.revision is {revision!r}, but {source!r} is no hub id; expected none")
