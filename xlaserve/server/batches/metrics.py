"""Prometheus metrics of batches, read when scraped."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from xlaserve.engine.metrics import PREFIX

if TYPE_CHECKING:
    from xlaserve.server.batches.batches import Batches


class BatchMetrics(Collector):
    def __init__(self, batches: "Batches", model_name: str):
        self._batches = batches
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        statuses = GaugeMetricFamily(f"{PREFIX}batches", "Batches there are", labels=("model_name", "status"))
        for status, count in self._batches.store.count().items():
            statuses.add_metric((self._model_name, status), count)
        yield statuses
        lines = CounterMetricFamily(f"{PREFIX}batch_lines", "Lines of batches run", labels=("model_name", "result"))
        for result, count in self._batches.runner.lines_done.items():
            lines.add_metric((self._model_name, result), count)
        yield lines
