"""xlaserve build: the programs of a deployment as a folder."""

import time
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.options import (
    cache_dir,
    compiler_flags,
    config_options,
    gpu_share,
    look_for_no_device,
    resolve_config,
    user_errors,
    with_config,
)


@click.command(name="build", short_help="Compile a deployment's programs ahead of time.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@config_options
@click.option("--target", metavar="T", help="tpu-v5e-8, h100x4, cpu, ...  [default: this machine's device]")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to make; it must not be there.")
@user_errors
def command(config: Path | None, target: str | None, out: Path, **options: Any) -> None:
    """Compile all programs of a deployment, and write them to a folder: a bundle.

    `xlaserve serve CONFIG --bundle DIR` loads it instead of compiling, on machines with the same kind of device and the
    same versions of jax. Weights are not in it: any of the same architecture will do, and none are needed here. CONFIG
    is a YAML file, or a model's config.json.

    With --target the hardware need not be there: cpu, tpu-v5e-1|4|8, tpu-v5p-1|4|8, tpu-v6e-1|4|8, tpu-v7x-2|8 (the
    number is that of jax devices), a100, h100, h200, b200, each also with x2, x4 or x8. For TPUs that needs libtpu, for
    GPUs jax's CUDA plugin. Such programs are compiled and serialised, not executed.

    \b
    Examples:
      xlaserve build configs/demo.yaml --out demo.bundle
      xlaserve serve configs/demo.yaml --bundle demo.bundle
      xlaserve build Llama-3.1-8B/config.json --target tpu-v5e-8 --out llama-v5e-8.bundle
    """
    start = time.monotonic()
    if target is not None:
        look_for_no_device()
    resolved = resolve_config(**with_config(config, options))
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.engine.build import build_bundle
    from xlaserve.engine.machine import Machine
    from xlaserve.runner.manifest import Build
    from xlaserve.sharding import make_mesh
    from xlaserve.targets import find_target

    if target is None:
        mesh = make_mesh()
        machine = Machine.here(mesh)
    else:
        found = find_target(target)
        machine, mesh = Machine.of(found, gpu_share()), make_mesh(found.devices())
        target = found.name
    with ConsoleReporter() as reporter:
        num_programs, num_bytes = build_bundle(
            resolved,
            out,
            build=Build(target=target, flags=compiler_flags()),
            machine=machine,
            mesh=mesh,
            cache_dir=cache_dir(),
            reporter=reporter,
        )
        reporter.banner()
    told = f"{out}: {num_programs} programs, {num_bytes / 1e6:.1f} MB, in {(time.monotonic() - start) / 60:.1f} minutes"
    if target is not None:
        told += f", compiled for {target} and serialised: not executed"
    click.echo(told, err=True)
