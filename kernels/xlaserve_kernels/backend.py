"""Which implementation of the kernels runs: chosen once, by name. Never a silent fallback."""

BACKENDS = ("xla",)


def resolve(name: str, platform: str) -> str:
    """The backend for `name` on jax platform `platform` (cpu, gpu, tpu). "auto" takes the platform's best.

    Raises ValueError naming the choices.
    """
    if name == "auto":
        return "xla"
    if name not in BACKENDS:
        raise ValueError(
            f"attention_backend {name!r} is not available on {platform}: choose auto, {', '.join(BACKENDS)}"
        )
    return name
