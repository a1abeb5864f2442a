"""A Hugging Face folder: config.json, and weights in model.safetensors or in shards named by its index."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.checkpoint import DOWNLOAD_AGAIN, TensorInfo, read_array
from xlaserve.models.quantized_config import KEY as QUANTIZATION
from xlaserve.models.safetensors_header import StoredTensor, read_header

_FLOATS = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_DTYPES = _FLOATS | {  # of quantised weights
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
_CONFIG_DTYPES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsFolder:
    """Opens the folder and checks every header; weights are read on demand. Raises CheckpointError.

    With a quantization_config the tensors are as they are stored: QuantizedCheckpoint makes weights of them.
    """

    gguf_metadata: dict[str, Any] | None = None

    def __init__(self, folder: Path, source: str | None = None):
        self.folder: Path | None = folder
        self.source = source or str(folder)
        self.where = str(folder / "config.json")
        self.config = read_json(folder / "config.json", required=True)
        self.generation_config = read_json(folder / "generation_config.json", required=False)
        self._stored = _stored_tensors(folder, _DTYPES if self.config.get(QUANTIZATION) else _FLOATS)
        self.tensors = {name: TensorInfo(s.shape, s.dtype, s.file) for name, s in self._stored.items()}
        floats = [stored for stored in self._stored.values() if stored.dtype in _FLOATS]
        if self.config.get("dtype") is None and self.config.get("torch_dtype") is None and floats:
            largest = max(floats, key=lambda stored: stored.num_bytes)
            self.config["dtype"] = _CONFIG_DTYPES[largest.dtype]

    def read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        stored = self._stored[name]
        stored_dtype = _DTYPES[stored.dtype]
        return read_array(
            stored.file,
            stored.offset,
            stored.shape,
            dtype or stored_dtype,
            decode=lambda raw: raw.view(stored_dtype),
            block_bytes=stored_dtype.itemsize,
            block_values=1,
        )


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """The object in a JSON file; {} when it may be absent and is. Raises CheckpointError naming the file and place."""
    if not required and not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; expected a Hugging Face model folder with {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}); {DOWNLOAD_AGAIN}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(data).__name__}; expected an object")
    return data


def _stored_tensors(folder: Path, dtypes: Mapping[str, np.dtype]) -> dict[str, StoredTensor]:
    if (folder / _SINGLE).exists():
        return read_header(folder / _SINGLE, dtypes)
    if (folder / _INDEX).exists():
        return _sharded_tensors(folder, dtypes)
    found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".safetensors", ".gguf"))
    pickled = [name for name in found if not name.endswith((".safetensors", ".gguf"))]
    if pickled and len(pickled) == len(found):
        raise CheckpointError(
            f"{folder}: the weights are pickled ({', '.join(pickled[:3])}), which can run any code when read; "
            "convert them to safetensors: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT)"
        )
    listing = f"found {', '.join(found[:5])}" if found else "found no weights"
    raise CheckpointError(f"{folder}: expected {_SINGLE} or {_INDEX}; {listing}")


def _sharded_tensors(folder: Path, dtypes: Mapping[str, np.dtype]) -> dict[str, StoredTensor]:
    index = folder / _INDEX
    weight_map = read_json(index, required=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {weight_map!r:.80}; expected tensor names with their files")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(map(str, weight_map.values()))):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: names the file {shard!r}; expected a plain name in the same folder")
        if not (folder / shard).exists():
            raise CheckpointError(f"{folder / shard}: no such file, but {_INDEX} names it; {DOWNLOAD_AGAIN}")
        header = read_header(folder / shard, dtypes)
        for name in header.keys() & tensors.keys():
            raise CheckpointError(f"{folder / shard}: holds {name}, and so does {tensors[name].file.name}")
        tensors.update(header)
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise CheckpointError(f"{folder / shard}: has no tensor {name}, but {_INDEX} says it is there")
    return tensors
