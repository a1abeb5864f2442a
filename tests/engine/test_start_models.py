"""The models of a config: those that stay are started in turn, those on demand when they are asked for."""

from contextlib import ExitStack

import pytest

from tests.server.toy_service import make_toy_service
from xlaserve.config import load_config
from xlaserve.engine import build
from xlaserve.engine.reporter import SilentReporter
from xlaserve.engine.served_models import ServedModels
from xlaserve.engine.start_models import start_models
from xlaserve.errors import ConfigError, EngineUnavailable

TWO = ["models.a.model.source=x", "models.b.model.source=y", "cache.memory=1MiB"]
NUM_BYTES = 100


class Told(SilentReporter):
    def __init__(self):
        self.lines = []

    def phase(self, name):
        self.lines.append(name)

    def info(self, key, value, reason):
        self.lines.append(f"{key}={value}")


@pytest.fixture
def built(monkeypatch):
    """The services that were built; one of the source `broken` cannot be."""
    services = []

    def build_service(config, *, cache_dir, reporter, make_room):
        reporter.phase("open")
        reporter.info("source", config.model.source, "")
        if config.model.source == "broken":
            raise ConfigError("broken")
        make_room(NUM_BYTES)
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
    assert [(slot.name, slot.num_bytes, slot.state) for slot in models.slots] == [
        ("a", NUM_BYTES, "ready"),
        ("b", NUM_BYTES, "ready"),
    ]
    assert list(models) == built
    assert told.lines == ["a: open", "a: source=x", "b: open", "b: source=y"]


def test_one_alone_is_told_of_without_its_name(built, tmp_path):
    told = Told()
    models = start(tmp_path, "model.source=x", told=told)
    assert [slot.name for slot in models.slots] == ["toy"]
    assert told.lines == ["open", "source=x"]


def test_where_one_cannot_start_none_stays(built, tmp_path):
    with pytest.raises(ConfigError, match="broken"):
        start(tmp_path, *TWO, "models.c.model.source=broken", "models.d.model.source=z")
    assert len(built) == 2
    assert all(service.state != "ready" for service in built)


def test_those_on_demand_are_started_when_they_are_asked_for(built, tmp_path):
    demand = ["models.b.on_demand=true", "models.c.on_demand=true", "models.c.model.source=broken"]
    told = Told()
    models = start(tmp_path, *TWO, *demand, f"server.models_memory={2 * NUM_BYTES}", told=told)
    assert [slot.state for slot in models.slots] == ["ready", "not loaded", "not loaded"]
    assert told.lines[2:] == ["b: loaded=on demand", "c: loaded=on demand"]
    with ExitStack() as stack:
        assert models.use("b", stack) is built[1]
    with pytest.raises(EngineUnavailable, match="'c' cannot be loaded: broken"):
        models.use("c", ExitStack())
