"""The Prometheus metrics of several models as one text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from xlaserve.engine.metrics import PREFIX

if TYPE_CHECKING:
    from xlaserve.engine.served_models import ServedModels


class ModelMetrics(Collector):
    """Families of the registries of all models that are loaded, each once, and of the models themselves."""

    def __init__(self, models: "ServedModels"):
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return iter(())  # or registering would collect

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for service in self._models:
            for found in service.metrics.registry.collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += found.samples
        yield from families.values()
        loaded = GaugeMetricFamily(f"{PREFIX}model_loaded", "Whether it is", labels=["model_name"])
        loads = CounterMetricFamily(f"{PREFIX}model_loads", "Times it was loaded on demand", labels=["model_name"])
        for slot in self._models.slots:
            loaded.add_metric([slot.name], float(slot.service is not None))
            loads.add_metric([slot.name], float(slot.num_loads))
        yield from (loaded, loads)
