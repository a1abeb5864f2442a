"""What is done to pooled hidden states before they are compared, and how a checkpoint says that it pools."""

from pathlib import Path

import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.safetensors_folder import read_json
from xlaserve.sampling_params import PoolingType

POOLING_FILE = "1_Pooling/config.json"  # of sentence-transformers
_MODES: dict[str, PoolingType] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


def normalised(embeddings: np.ndarray) -> np.ndarray:
    """float [n, D], each divided by its length, in float32; zeros stay."""
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=-1, keepdims=True)
    return (embeddings / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def pooling_of(folder: Path | None) -> PoolingType | None:
    """What the checkpoint in `folder` says, if it does. Raises CheckpointError for a way that is not served."""
    if folder is None:
        return None
    file = folder / POOLING_FILE
    modes = [
        name
        for name, wanted in read_json(file, required=False).items()
        if name.startswith("pooling_mode_") and wanted is True
    ]
    if not modes:
        return None
    if len(modes) > 1 or modes[0] not in _MODES:
        raise CheckpointError(
            f"{file}: pools by {', '.join(modes)}; expected one of {', '.join(_MODES)}, or model.pooling in the config"
        )
    return _MODES[modes[0]]
