"""Which implementation of the kernels runs: chosen once, by name. Never a silent fallback."""

from collections.abc import Container

from xlaserve_kernels import native

BACKENDS = {  # the platform each runs on, None for any; interpreted ones are for tests
    "xla": None,
    "cpu_native": "cpu",  # where `native.load` has found a compiler, or what it once made
    "pallas_tpu": "tpu",
    "pallas_tpu_interpret": None,
    "pallas_gpu": "gpu",
    "pallas_gpu_interpret": None,
}


def available(platform: str) -> tuple[str, ...]:
    """The backends that run on jax platform `platform` (cpu, gpu, tpu), now."""
    usable = BACKENDS if native.loaded() else BACKENDS.keys() - {"cpu_native"}
    return tuple(name for name, only in BACKENDS.items() if only in (None, platform) and name in usable)


def check_backend(name: str) -> None:
    """Raises ValueError naming the choices."""
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r}: must be one of {', '.join(BACKENDS)}")


def resolve(name: str, platform: str, implemented: Container[str] = BACKENDS) -> str:
    """The backend for `name` on `platform`; "auto" is the kernel written for it, or xla where there is none.

    implemented: by an operation; others are not what "auto" means. Raises ValueError naming the choices.
    """
    choices = available(platform)
    if name == "auto":
        return next((kernel for kernel in choices if BACKENDS[kernel] == platform and kernel in implemented), "xla")
    if name not in choices:
        raise ValueError(
            f"attention_backend {name!r} is not available on {platform}: choose auto, {', '.join(choices)}"
        )
    return name
