"""The models of one server, by the names they are served under."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from xlaserve.config import Config
from xlaserve.engine import build
from xlaserve.engine.reporter import OfModel, Reporter
from xlaserve.engine.service import GenerationService
from xlaserve.errors import InvalidRequest


class ServedModels:
    """The first is meant where a request names none. Iterates over their services."""

    def __init__(self, *services: GenerationService):
        self._services = {service.info.name: service for service in services}
        assert len(self._services) == len(services) > 0
        self.first = services[0]
        self._registry = CollectorRegistry()
        self._registry.register(_Merged([service.metrics.registry for service in services]))

    def __iter__(self) -> Iterator[GenerationService]:
        return iter(self._services.values())

    def __len__(self) -> int:
        return len(self._services)

    def find(self, name: str | None) -> GenerationService:
        """Raises InvalidRequest (404) naming the models that there are."""
        if name is None:
            return self.first
        if name not in self._services:
            message = (
                f"The model {name[:200]!r} does not exist; this server has {', '.join(map(repr, self._services))}."
            )
            raise InvalidRequest(message, param="model", code="model_not_found", status=404)
        return self._services[name]

    def render_metrics(self) -> bytes:
        """The text that Prometheus scrapes, of all models."""
        return generate_latest(self._registry)


def start_models(config: Config, *, cache_dir: Path, reporter: Reporter) -> ServedModels:
    """All models of the config, one after the other; where one cannot start, none stays. Raises as `build_service`."""
    services: list[GenerationService] = []
    try:
        for deployment in config.deployments():
            told = OfModel(deployment.model.served_name or "", reporter) if config.models else reporter
            services.append(build.build_service(deployment, cache_dir=cache_dir, reporter=told))
    except BaseException:
        for service in services:
            service.shutdown(timeout=0)
        raise
    return ServedModels(*services)


class _Merged(Collector):
    """Families of several registries, each of which has a label of its own: in the text a family stands once."""

    def __init__(self, registries: list[CollectorRegistry]):
        self._registries = registries

    def describe(self) -> Iterator[Metric]:
        return iter(())  # or registering would collect

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for found in registry.collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += found.samples
        return iter(families.values())
