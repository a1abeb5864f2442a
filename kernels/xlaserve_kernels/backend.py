"""Which implementation of the kernels runs: chosen once, by name. Never a silent fallback."""

BACKENDS = {  # the platform each runs on, None for any; interpreted ones are for tests
    "xla": None,
    "pallas_tpu": "tpu",
    "pallas_tpu_interpret": None,
    "pallas_gpu": "gpu",
    "pallas_gpu_interpret": None,
}


def available(platform: str) -> tuple[str, ...]:
    """The backends that run on jax platform `platform` (cpu, gpu, tpu)."""
    return tuple(name for name, only in BACKENDS.items() if only in (None, platform))


def check_backend(name: str) -> None:
    """Raises ValueError naming the choices."""
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r}: must be one of {', '.join(BACKENDS)}")


def resolve(name: str, platform: str) -> str:
    """The backend for `name` on `platform`; "auto" is the kernel written for it, or xla where there is none.

    Raises ValueError naming the choices.
    """
    if name == "auto":
        return next((kernel for kernel, only in BACKENDS.items() if only == platform), "xla")
    choices = available(platform)
    if name not in choices:
        raise ValueError(
            f"attention_backend {name!r} is not available on {platform}: choose auto, {', '.join(choices)}"
        )
    return name
