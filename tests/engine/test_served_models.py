"""Several models in one process: who is meant, what is told of them, and that none stays when one cannot start."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.toy_service import make_toy_service
from xlaserve.config import load_config
from xlaserve.engine import build
from xlaserve.engine.reporter import SilentReporter
from xlaserve.engine.served_models import ServedModels, start_models
from xlaserve.errors import ConfigError, InvalidRequest

TWO = ["models.a.model.source=x", "models.b.model.source=y", "cache.memory=1MiB"]


class Told(SilentReporter):
    def __init__(self):
        self.lines = []

    def phase(self, name):
        self.lines.append(name)

    def info(self, key, value, reason):
        self.lines.append(f"{key}={value}")


@pytest.fixture
def built(monkeypatch):
    """The services that were built, by config; a source `broken` cannot be."""
    services = []

    def build_service(config, *, cache_dir, reporter):
        reporter.phase("open")
        reporter.info("source", config.model.source, "")
        if config.model.source == "broken":
            raise ConfigError("broken")
        services.append(make_toy_service(b"HELLO", name=config.model.served_name or "toy")[0])
        return services[-1]

    monkeypatch.setattr(build, "build_service", build_service)
    yield services
    for service in services:
        assert service.shutdown(timeout=10)


def start(tmp_path, *overrides: str, told=None) -> ServedModels:
    return start_models(load_config(None, overrides), cache_dir=tmp_path, reporter=told or SilentReporter())


def test_each_has_its_name(built, tmp_path):
    told = Told()
    models = start(tmp_path, *TWO, told=told)
    assert [service.info.name for service in models] == ["a", "b"]
    assert models.first is models.find(None) is models.find("a")
    assert models.find("b") is built[1]
    assert told.lines == ["a: open", "a: source=x", "b: open", "b: source=y"]
    with pytest.raises(InvalidRequest, match="'c' does not exist; this server has 'a', 'b'") as refused:
        models.find("c")
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "model_not_found", "model")


def test_one_alone_is_told_of_without_its_name(built, tmp_path):
    told = Told()
    assert len(start(tmp_path, "model.source=x", told=told)) == 1
    assert told.lines == ["open", "source=x"]


def test_where_one_cannot_start_none_stays(built, tmp_path):
    with pytest.raises(ConfigError, match="broken"):
        start(tmp_path, *TWO, "models.c.model.source=broken", "models.d.model.source=z")
    assert len(built) == 2
    assert all(service.state != "ready" for service in built)


def test_metrics_of_all_are_one_text(built, tmp_path):
    text = start(tmp_path, *TWO).render_metrics().decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families) > 20
    for family in families:
        if not family.samples:  # a toy was not measured when it started
            continue
        assert {sample.labels["model_name"] for sample in family.samples} == {"a", "b"}, family.name
    alone = built[0].metrics.render().decode()
    assert sorted(line for line in alone.splitlines() if "seconds" not in line) == sorted(
        line for line in text.splitlines() if 'model_name="b"' not in line and "seconds" not in line
    )
