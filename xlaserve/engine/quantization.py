"""Whether weights are quantised when they are loaded, how, and what multiplies with them."""

from dataclasses import dataclass, replace

from xlaserve_kernels.quantized_matmul import implements

from xlaserve.config import ModelSection
from xlaserve.engine.machine import Machine
from xlaserve.errors import ConfigError
from xlaserve.layers.quantized import Quantization, WeightFormat
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.config import ModelConfig
from xlaserve.models.quantized_checkpoint import QuantizedCheckpoint
from xlaserve.models.quantized_config import Scheme
from xlaserve.models.quantized_decoding import kernel_group
from xlaserve.targets import chip_of_kind

_MODES = {"int8": "w8a8", "int8_weight_only": "w8a16", "fp8": "fp8_w8a8"}  # by setting, those of quantized_matmul
# Of activations that share a scale in w8a8, the first that divides a weight's inputs: one per token is too coarse for
# small models. Where none divides them, it is one per token.
_GROUP_SIZES = (128, 64, 32)
_WIDENED = {"pallas_gpu": "float16", "pallas_tpu": "bfloat16"}  # what kernels multiply float8 in; xla: as it likes


@dataclass(frozen=True)
class StoredFormats:
    """Of a checkpoint whose weights are quantised: by their names. What multiplies with them is yet to be chosen."""

    method: str
    formats: dict[str, WeightFormat]


def choose_quantization(
    section: ModelSection, model: ModelConfig, machine: Machine, backend: str, stored: StoredFormats | None = None
) -> tuple[Quantization | None, str]:
    """The quantisation for a setting of auto or a name, and the reason. backend: of attention, chosen already.

    stored: of a checkpoint that is quantised; auto keeps that. Else auto is int8_weight_only on a CPU with native
    code, for checkpoints of 16 bits or fewer, unless float32 or float16 is asked for. Raises
    ConfigError where the model's dtype cannot be multiplied with such weights, and for what a quantised checkpoint
    cannot be.
    """
    name, why = section.quantization, "model.quantization"
    if name == "none":
        return None, f"{why}; the checkpoint's weights are widened" if stored else why
    if stored:
        return _of_checkpoint(stored, section, machine, backend)
    if name == "auto":
        if against := _against_auto(section, model, machine, backend):
            return None, f"{why}: auto, {against}"
        name, why = "int8_weight_only", f"{why}: auto, native kernels are the fastest with it"
    if section.dtype == "float16":
        raise ConfigError(f"model.quantization is {name}: model.dtype must be float32 or bfloat16 with it, not float16")
    mode = _MODES[name]
    products = backend if implements(backend, mode) else "xla"
    told = [f"{mode} by {products}", *_caveat(mode, products, machine)]
    groups = _GROUP_SIZES if mode == "w8a8" else ()
    return Quantization(name, mode, products, groups), f"{why}; {'; '.join(told)}"


def _of_checkpoint(
    stored: StoredFormats, section: ModelSection, machine: Machine, backend: str
) -> tuple[Quantization, str]:
    if section.quantization != "auto":
        raise ConfigError(
            f"model.quantization is {section.quantization}: the checkpoint's weights are quantised ({stored.method}); "
            "write auto, or none to widen them"
        )
    modes = sorted({each.mode for each in stored.formats.values()})
    problem = None
    if section.dtype == "float16":
        problem = "model.dtype must be float32 or bfloat16"
    elif machine.num_devices > 1 and "w4a16" in modes:
        problem = f"{machine.num_devices} devices cannot share weights of 4 bits"
    if problem:
        raise ConfigError(
            f"{problem}: the checkpoint is quantised ({stored.method}); model.quantization: none widens it"
        )
    products = {mode: backend if implements(backend, mode) else "xla" for mode in modes}
    told = [text for mode in modes for text in (f"{mode} by {products[mode]}", *_caveat(mode, products[mode], machine))]
    formats = tuple((name, replace(each, backend=products[each.mode])) for name, each in stored.formats.items())
    return Quantization(
        stored.method, modes[0], products[modes[0]], formats=formats
    ), f"the checkpoint's; {'; '.join(told)}"


def stored_formats(checkpoint: Checkpoint) -> StoredFormats | None:
    """None: its weights are not quantised."""
    if not isinstance(checkpoint, QuantizedCheckpoint):
        return None

    def format_of(name: str, scheme: Scheme) -> WeightFormat:
        if scheme.mode != "w4a16":
            return WeightFormat(scheme.mode)
        group = kernel_group(checkpoint.tensors[name].shape[1], scheme.group_size)
        return WeightFormat(scheme.mode, group, checkpoint.scale_dtype(name).name, scheme.has_zeros)

    return StoredFormats(
        checkpoint.method, {name: format_of(name, scheme) for name, scheme in checkpoint.schemes.items()}
    )


def keeps_formats(quantization: Quantization | None, checkpoint: Checkpoint) -> bool:
    """Whether its weights can stand where others are kept so: quantised weights are not quantised once more."""
    stored = stored_formats(checkpoint)
    found = stored.formats if stored else {}
    kept = {name: replace(each, backend="xla") for name, each in (quantization.formats if quantization else ())}
    return quantization is None or found == kept


def _against_auto(section: ModelSection, model: ModelConfig, machine: Machine, backend: str) -> str | None:
    if machine.platform != "cpu":
        return "on a CPU only"
    if backend != "cpu_native":
        return "with native kernels only"
    if section.dtype in ("float32", "float16"):
        return f"model.dtype is {section.dtype}"
    return "the checkpoint is float32" if model.checkpoint_dtype == "float32" else None


def _caveat(mode: str, products: str, machine: Machine) -> list[str]:
    """What the chip or the kernel computes otherwise than the mode says."""
    if mode in ("w8a16", "w4a16"):
        return []
    kind, chip = "float8" if mode == "fp8_w8a8" else "int8", chip_of_kind(machine.kind)
    if machine.platform == "cpu":
        lacks = kind == "float8"
    else:
        lacks = chip is not None and (chip.fp8 if kind == "float8" else chip.int8) is None
    wider = _WIDENED.get(products) if kind == "float8" else None
    if lacks:
        return [f"{machine.kind} has no {kind} products: computed in {wider or 'a wider type'}, it saves memory only"]
    return [f"computed in {wider} by {products}"] if wider else []
