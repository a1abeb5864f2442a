"""From a Config to the models of a server."""

from pathlib import Path

from xlaserve.config import Config
from xlaserve.engine import build
from xlaserve.engine.reporter import OfModel, Reporter, SilentReporter
from xlaserve.engine.served_models import MakeRoom, ServedModels, Slot
from xlaserve.engine.service import GenerationService


def start_models(config: Config, *, cache_dir: Path, reporter: Reporter) -> ServedModels:
    """The models of the config that stay, one after the other; where one cannot start, none does.

    Raises as `build_service`.
    """
    slots: list[Slot] = []

    def start(deployment: Config, told: Reporter, make_room: MakeRoom) -> GenerationService:
        return build.build_service(deployment, cache_dir=cache_dir, reporter=told, make_room=make_room)

    try:
        for deployment in config.deployments():
            name = deployment.model.served_name or ""
            told = OfModel(name, reporter) if config.models else reporter
            if config.models and config.models[name].on_demand:
                told.info("loaded", "on demand", f"models.{name}.on_demand")
                slots.append(Slot(name, lambda room, one=deployment: start(one, SilentReporter(), room)))
                continue
            sizes: list[int] = []
            service = start(deployment, told, sizes.append)
            slots.append(Slot(service.info.name, service=service, num_bytes=sum(sizes)))
    except BaseException:
        for slot in slots:
            if slot.service is not None:
                slot.service.shutdown(timeout=0)
        raise
    return ServedModels(slots, memory=config.server.models_memory or 0, wait=config.server.model_wait)
