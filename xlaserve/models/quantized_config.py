"""What a config.json says of weights that are stored quantised: `quantization_config`, of four methods.

It tells how such a weight is stored; which ones are, the file's tensors tell, and modules that the config leaves out
(`ignore`, `modules_to_not_convert`) have plain ones. What cannot be computed as it says is refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from xlaserve.models.fields import Fields

KEY = "quantization_config"
METHODS = ("compressed-tensors", "awq", "gptq", "fp8")
_LINEAR = "Linear"  # the class of all modules that can be quantised here
_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")


@dataclass(frozen=True)
class Scheme:
    """How a weight [out, in] is stored.

    awq, gptq: qweight, qzeros and scales, transposed. packed: weight_packed, eight or four values to a word. plain:
    weight, one value to an element.
    """

    storage: Literal["awq", "gptq", "packed", "plain"]
    mode: str  # of quantized_matmul's MODES
    group_size: int | None = None  # inputs that share a scale; None: all
    has_zeros: bool = False  # else the middle of the values is zero
    zero_offset: int = 0  # what is added to a stored zero point

    @property
    def bits(self) -> int:
        return 4 if self.mode == "w4a16" else 8


@dataclass(frozen=True)
class _Group:
    """Modules that are quantised alike."""

    targets: tuple[str, ...]
    scheme: Scheme


@dataclass(frozen=True)
class StoredQuantization:
    """Of a whole checkpoint."""

    method: str
    groups: tuple[_Group, ...]
    ignored: tuple[str, ...] = ()  # of compressed-tensors, which names exactly what it leaves out

    def scheme_of(self, module: str) -> Scheme | None:
        """Of a linear module, "model.layers.0.mlp.up_proj"; None: it is not quantised."""
        if _matches(module, self.ignored):
            return None
        return next((group.scheme for group in self.groups if _matches(module, group.targets)), None)


def parse_quantization(config: Fields) -> StoredQuantization | None:
    """None: `config` has no quantization_config. Raises CheckpointError naming the key, and what is read."""
    if config.values.get(KEY) is None:
        return None
    section = config.mapping(KEY)
    method = section.choice("quant_method", METHODS)
    if method == "compressed-tensors":
        return _compressed_tensors(section)
    scheme = {"awq": _awq, "gptq": _gptq, "fp8": _fp8}[method](section)
    return StoredQuantization(method, (_Group((_LINEAR,), scheme),))


def _awq(section: Fields) -> Scheme:
    _only(section, "bits", (4,))
    version = section.values.get("version", "gemm")
    if str(version).lower() != "gemm":
        raise section.error("version", "gemm: other versions order the values otherwise")
    return Scheme("awq", "w4a16", _group_size(section), has_zeros=True)


def _gptq(section: Fields) -> Scheme:
    _only(section, "bits", (4,))
    _nothing(section, "dynamic", "is_marlin_format")
    form = section.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    symmetric = section.boolean("sym", True)
    return Scheme("gptq", "w4a16", _group_size(section), not symmetric, zero_offset=1 if form == "gptq" else 0)


def _fp8(section: Fields) -> Scheme:
    _nothing(section, "weight_block_size")
    section.choice("fmt", ("e4m3",), "e4m3")
    section.choice("activation_scheme", ("dynamic", "static"), "dynamic")
    return Scheme("plain", "fp8_w8a8")


def _compressed_tensors(section: Fields) -> StoredQuantization:
    section.choice("quantization_status", ("compressed",), "compressed")
    _nothing(section, "transform_config")
    sparsity = section.mapping("sparsity_config")
    sparsity.choice("format", ("dense",), "dense")
    outer = section.choice("format", (*_FORMATS, "mixed-precision"))
    groups = section.mapping("config_groups")
    if not groups.values:
        raise section.error("config_groups", "one group at least")
    found = []
    for name in groups.values:
        group = groups.mapping(name)
        storage = group.choice("format", _FORMATS, None if outer == "mixed-precision" else outer)
        if storage is None:
            raise group.error("format", f"one of {', '.join(_FORMATS)}")
        found.append(_Group(_names(group, "targets"), _compressed_scheme(group, storage)))
    return StoredQuantization("compressed-tensors", tuple(found), _names(section, "ignore"))


def _compressed_scheme(group: Fields, storage: str) -> Scheme:
    _nothing(group, "output_activations")
    weights, inputs = group.mapping("weights"), group.mapping("input_activations")
    kind, bits = weights.choice("type", ("int", "float")), _only(weights, "num_bits", (4, 8))
    if weights.values.get("actorder") not in (None, False, "weight", "static"):
        raise weights.error("actorder", "null or weight: inputs of a group must be neighbours")
    if inputs.values:
        _only(inputs, "num_bits", (8,))
        inputs.choice("type", (kind,))
        _only(inputs, "symmetric", (True,), True)
        inputs.choice("strategy", ("token", "tensor"))
    symmetric = weights.boolean("symmetric", True)
    if bits == 4:
        if storage != "pack-quantized" or kind != "int" or inputs.values:
            raise weights.error("num_bits", f"8 with type {kind}, format {storage} and these input_activations")
        strategy = weights.choice("strategy", ("group", "channel"))
        return Scheme("packed", "w4a16", None if strategy == "channel" else _group_size(weights), not symmetric)
    if not symmetric:
        raise weights.error("symmetric", "true with num_bits 8")
    weights.choice("strategy", ("channel", "tensor"))  # no kernel has 8 bits and groups
    mode = {"int": ("w8a16", "w8a8"), "float": ("fp8_w8a16", "fp8_w8a8")}[kind][bool(inputs.values)]
    if storage == "pack-quantized" and mode != "w8a16":
        raise group.error("input_activations", "null with format pack-quantized")
    return Scheme("packed" if storage == "pack-quantized" else "plain", mode)


def _group_size(section: Fields) -> int | None:
    """Inputs that share a scale; None: all of them."""
    size = section.integer("group_size", minimum=-1)
    if size == -1:
        return None
    if size not in (32, 64) and (size < 128 or size % 128):
        raise section.error("group_size", "-1, 32, 64, 128 or a multiple of that")
    return size


def _only(section: Fields, key: str, allowed: tuple, default: Any = None) -> Any:
    value = section.values.get(key, default)
    if isinstance(value, bool) != isinstance(allowed[0], bool) or value not in allowed:
        raise section.error(key, " or ".join(str(each).lower() for each in allowed))
    return value


def _nothing(section: Fields, *keys: str) -> None:
    for key in keys:
        if section.values.get(key):
            raise section.error(key, "nothing: that is not supported")


def _names(section: Fields, key: str) -> tuple[str, ...]:
    names = section.values.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise section.error(key, "a list of names")
    return tuple(names)


def _matches(module: str, names: Iterable[str]) -> bool:
    """A name is a class, a module, or re: with a regular expression for modules."""
    return any(
        name in (_LINEAR, module) or (name.startswith("re:") and re.match(name[3:], module) is not None)
        for name in names
    )
