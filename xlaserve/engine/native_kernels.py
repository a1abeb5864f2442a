"""The native kernels of this process, compiled or found before anything asks which backends there are."""

from pathlib import Path

import jax
from xlaserve_kernels import native

from xlaserve.config import KernelsSection
from xlaserve.engine.reporter import Reporter
from xlaserve.errors import ConfigError


def load_native(section: KernelsSection, folder: Path, reporter: Reporter) -> None:
    """Makes the backend cpu_native available, if it can be chosen. Where it cannot be compiled, the banner says why.

    Raises ConfigError for instructions that this processor has not.
    """
    if jax.devices()[0].platform != "cpu" or section.attention_backend not in ("auto", "cpu_native"):
        return
    reporter.phase("load the native kernels")
    try:
        library = native.load(folder, section.cpu_instructions)
    except ValueError as error:
        raise ConfigError(f"kernels.cpu_instructions: {error}") from error
    except native.NativeUnavailable as error:
        reporter.info("native kernels", "none", str(error))
    else:
        how = "compiled into" if library.compiled else "found in"
        why = f"kernels.cpu_instructions: {section.cpu_instructions}; {how} {folder}"
        reporter.info("native kernels", library.level, why)
