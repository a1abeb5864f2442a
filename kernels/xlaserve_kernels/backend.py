"""Which implementation of the kernels runs: chosen once, by name. Never a silent fallback."""

BACKENDS = {  # the platform each runs on, None for any; interpreted ones are for tests
    "xla": None,
    "pallas_gpu": "gpu",
    "pallas_gpu_interpret": None,
}


def available(platform: str) -> tuple[str, ...]:
    """The backends that run on jax platform `platform` (cpu, gpu, tpu)."""
    return tuple(name for name, only in BACKENDS.items() if only in (None, platform))


def resolve(name: str, platform: str) -> str:
    """The backend for `name` on `platform`. "auto" is xla everywhere, until a kernel has been run on its hardware.

    Raises ValueError naming the choices.
    """
    if name == "auto":
        return "xla"
    choices = available(platform)
    if name not in choices:
        raise ValueError(
            f"attention_backend {name!r} is not available on {platform}: choose auto, {', '.join(choices)}"
        )
    return name
