"""What settings and sizes depend on of the devices that will run a model, whether they are here or not."""

from dataclasses import dataclass

from jax.sharding import Mesh

from xlaserve.runner.memory import DeviceMemory, device_memory
from xlaserve.targets import Target


@dataclass(frozen=True)
class Machine:
    platform: str  # cpu, gpu or tpu
    kind: str  # of each device, as jax names it
    num_devices: int
    memory: DeviceMemory | None  # of each device; None where it uses the host's

    @classmethod
    def here(cls, mesh: Mesh) -> "Machine":
        """The devices of `mesh`, which are this process's."""
        device = mesh.devices.flat[0]
        return cls(device.platform, device.device_kind, mesh.size, device_memory(device))

    @classmethod
    def of(cls, target: Target, gpu_share: float) -> "Machine":
        """gpu_share: of a card's memory, what jax gets. Needs no compiler."""
        usable = target.usable_bytes(gpu_share)
        memory = None if usable is None else DeviceMemory(usable, in_use=0)
        kind = target.platform if target.chip is None else target.chip.kind
        return cls(target.platform, kind, target.num_devices, memory)
