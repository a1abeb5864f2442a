"""Whether weights are quantised when they are loaded, how, and what multiplies with them."""

from xlaserve_kernels.quantized_matmul import implements

from xlaserve.config import ModelSection
from xlaserve.engine.machine import Machine
from xlaserve.errors import ConfigError
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import ModelConfig
from xlaserve.targets import chip_of_kind

_MODES = {"int8": "w8a8", "int8_weight_only": "w8a16", "fp8": "fp8_w8a8"}  # by setting, those of quantized_matmul
# Of activations that share a scale in w8a8, the first that divides a weight's inputs: one per token is too coarse for
# small models. Where none divides them, it is one per token.
_GROUP_SIZES = (128, 64, 32)
_WIDENED = {"pallas_gpu": "float16", "pallas_tpu": "bfloat16"}  # what kernels multiply float8 in; xla: as it likes


def choose_quantization(
    section: ModelSection, model: ModelConfig, machine: Machine, backend: str
) -> tuple[Quantization | None, str]:
    """The quantisation for a setting of auto or a name, and the reason. backend: of attention, chosen already.

    auto: int8 on a CPU with native code for it, for checkpoints of 16 bits or fewer, unless float32 or float16 is asked
    for. Raises ConfigError where the model's dtype cannot be multiplied with such weights.
    """
    name, why = section.quantization, "model.quantization"
    if name == "none":
        return None, why
    if name == "auto":
        if against := _against_auto(section, model, machine, backend):
            return None, f"{why}: auto, {against}"
        name, why = "int8", f"{why}: auto, native kernels are the fastest with it"
    if section.dtype == "float16":
        raise ConfigError(f"model.quantization is {name}: model.dtype must be float32 or bfloat16 with it, not float16")
    mode = _MODES[name]
    products = backend if implements(backend, mode) else "xla"
    told = [f"{mode} by {products}", *_caveat(mode, products, machine)]
    groups = _GROUP_SIZES if mode == "w8a8" else ()
    return Quantization(name, mode, products, groups), f"{why}; {'; '.join(told)}"


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
    if mode == "w8a16":
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
