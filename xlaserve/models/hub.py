"""Downloads from the Hugging Face hub into the cache its own library keeps; what is there is used without a network."""

from collections.abc import Callable
from pathlib import Path

from xlaserve.errors import CheckpointError
from xlaserve.models.safetensors_folder import read_json

Announce = Callable[[str], None]  # told what is being downloaded, before it is

_MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
_UNWANTED = ["consolidated*", "original/*", "onnx/*"]  # the same weights once more, in other layouts


def fetch_folder(repo: str, revision: str | None, announce: Announce) -> Path:
    """The folder with a model's config, safetensors and tokenizer. Raises CheckpointError."""
    return _snapshot(repo, revision, _MODEL_FILES, _is_complete, announce)


def fetch_file(repo: str, name: str, revision: str | None, announce: Announce) -> Path:
    """One file of a repository, in the hub's cache. Raises CheckpointError."""
    file = _snapshot(repo, revision, [name], lambda folder: (folder / name).exists(), announce) / name
    if not file.exists():
        raise CheckpointError(f"{repo}: has no file {name} on the hub")
    return file


def _snapshot(
    repo: str, revision: str | None, patterns: list[str], is_complete: Callable[[Path], bool], announce: Announce
) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and needed for hub ids alone
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError

    def download(local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=_UNWANTED,
                local_files_only=local_files_only,
            )
        )

    try:
        cached = download(True)
        if is_complete(cached):
            return cached
    except HFValidationError as error:
        raise CheckpointError(f"{repo}: is no hub id: {error}") from error
    except LocalEntryNotFoundError:
        pass
    announce(f"downloading {repo} from the Hugging Face hub")
    try:
        return download(False)
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo}: the hub gives it to those who accepted its terms; do so on its page, then run `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{repo}: is not in the hub's cache here, and the hub cannot be reached") from error
    except Exception as error:  # the hub's library lets errors of its HTTP and transfer libraries through
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{repo}: cannot be downloaded from the hub: {reason[0]}") from error


def _is_complete(folder: Path) -> bool:
    """Whether a cached snapshot has all the weights: an interrupted download leaves some of them."""
    index = folder / "model.safetensors.index.json"
    if not (folder / "config.json").exists():
        return False
    if not index.exists():
        return (folder / "model.safetensors").exists()
    weight_map = read_json(index, required=True).get("weight_map")
    return isinstance(weight_map, dict) and all((folder / str(shard)).exists() for shard in weight_map.values())
