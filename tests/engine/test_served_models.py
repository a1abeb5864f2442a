"""Models that come and go: who is loaded, who goes, who waits, and that none takes more memory than there is."""

import random
import threading
import time
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.toy_service import make_toy_service
from xlaserve.engine.served_models import ServedModels, Slot
from xlaserve.errors import ConfigError, EngineUnavailable, InvalidRequest


class Fleet:
    """Toy models with the bytes they take; a gate that is closed keeps one loading."""

    def __init__(self, memory: int, wait: float = 20.0, stay: dict[str, int] | None = None, **sizes: int):
        self.sizes = sizes
        self.made = []
        self.events = []
        self.gates = {name: threading.Event() for name in sizes}
        self.broken: dict[str, Exception] = {}
        for gate in self.gates.values():
            gate.set()
        slots = [Slot(name, service=self._make(name), num_bytes=size) for name, size in (stay or {}).items()]
        slots += [Slot(name, lambda room, name=name: self._start(name, room)) for name in sizes]
        self.models = ServedModels(slots, memory=memory, wait=wait)
        self.memory = memory

    def _make(self, name: str):
        service, _ = make_toy_service(b"HELLO", name=name)
        self.made.append(service)
        return service

    def _start(self, name: str, make_room):
        make_room(self.sizes[name])
        assert self.gates[name].wait(20)
        if name in self.broken:
            raise self.broken[name]
        self.events.append(f"load {name}")
        return self._make(name)

    def use(self, name: str) -> ExitStack:
        stack = ExitStack()
        service = self.models.use(name, stack)
        assert (service.info.name, service.state) == (name, "ready")
        return stack

    def loaded(self) -> str:
        return "".join(sorted(service.info.name for service in self.models))

    def check(self) -> None:
        assert sum(slot.num_bytes for slot in self.models.slots) <= self.memory


@pytest.fixture
def make_fleet():
    fleets = []

    def make(*args, **kwargs) -> Fleet:
        fleets.append(Fleet(*args, **kwargs))
        return fleets[-1]

    yield make
    for fleet in fleets:
        assert all(service.shutdown(10) for service in fleet.made)


def wait_until(holds) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def in_thread(function, *args) -> tuple[threading.Thread, list]:
    found: list = []

    def run() -> None:
        try:
            found.append(function(*args))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def ended(thread: threading.Thread) -> bool:
    thread.join(20)
    return not thread.is_alive()


def test_the_first_request_loads_and_the_next_finds_it(make_fleet):
    fleet = make_fleet(100, a=60, b=30)
    assert fleet.loaded() == ""
    for _ in range(3):
        fleet.use("a").close()
    assert (fleet.events, fleet.loaded()) == (["load a"], "a")
    fleet.use("b").close()
    assert fleet.loaded() == "ab"


def test_whoever_has_not_been_asked_for_longest_goes(make_fleet):
    fleet = make_fleet(100, a=50, b=30, c=40)
    for name in ("a", "b", "a", "c"):
        fleet.use(name).close()
        fleet.check()
    assert fleet.loaded() == "ac"
    assert [service.state for service in fleet.made if service.info.name == "b"] != ["ready"]
    fleet.use("b").close()
    assert fleet.loaded() == "bc"


def test_several_go_for_one(make_fleet):
    fleet = make_fleet(100, a=40, b=30, c=90)
    for name in "abc":
        fleet.use(name).close()
    assert fleet.loaded() == "c"


def test_what_stays_stays(make_fleet):
    fleet = make_fleet(100, stay={"s": 50}, a=30, b=40)
    for name in ("s", "a", "b"):
        fleet.use(name).close()
    assert fleet.loaded() == "bs"
    assert fleet.models.slot(None).name == "s"


def test_one_that_can_never_fit_sends_nobody_away(make_fleet):
    fleet = make_fleet(100, stay={"s": 50}, a=30, b=51)
    fleet.use("a").close()
    with pytest.raises(EngineUnavailable, match=r"'b' cannot be loaded: it takes 51 bytes.*leaves 50"):
        fleet.use("b")
    assert fleet.loaded() == "as"


def test_one_in_use_goes_when_it_is_not_and_newcomers_wait(make_fleet):
    fleet = make_fleet(100, a=60, b=60)
    using = fleet.use("a")
    first, found = in_thread(fleet.use, "b")
    wait_until(lambda: fleet.models.slot("a").is_leaving)
    second, newcomer = in_thread(fleet.use, "a")
    assert fleet.loaded() == "a"
    using.close()
    assert ended(first)
    found[0].close()
    assert ended(second)  # b has gone for it
    newcomer[0].close()
    assert fleet.events == ["load a", "load b", "load a"]
    assert fleet.loaded() == "a"


def test_one_in_use_for_too_long_stays(make_fleet):
    fleet = make_fleet(100, wait=1.0, a=60, b=60)
    with fleet.use("a"):
        with pytest.raises(EngineUnavailable):
            fleet.use("b")
        wait_until(lambda: not fleet.models.slot("a").is_leaving)
        fleet.use("a").close()
    wait_until(lambda: not fleet.models.slot("b").is_loading)
    assert "'a', which was to go, is in use" in fleet.models.slot("b").error
    fleet.models._wait = 20.0
    fleet.use("b").close()
    assert fleet.loaded() == "b"


def test_a_load_that_takes_too_long_is_told_and_goes_on(make_fleet):
    fleet = make_fleet(100, wait=0.1, a=60)
    fleet.gates["a"].clear()
    with pytest.raises(EngineUnavailable, match="still loading"):
        fleet.use("a")
    assert fleet.models.slot("a").state == "loading"
    fleet.gates["a"].set()
    wait_until(lambda: fleet.loaded() == "a")
    assert fleet.models.slot("a").num_users == 0
    fleet.use("a").close()
    assert fleet.events == ["load a"]


@pytest.mark.parametrize(
    ("error", "told"), [(ConfigError("no file"), "no file"), (ValueError("inside"), "log says why")]
)
def test_all_who_wait_are_told_why_and_the_next_tries_again(make_fleet, error, told):
    fleet = make_fleet(100, a=60, b=30)
    fleet.broken["a"] = error
    fleet.gates["a"].clear()
    waiting = [in_thread(fleet.use, "a") for _ in range(4)]
    wait_until(lambda: len(fleet.models._changed._waiters) == 4)
    fleet.gates["a"].set()
    assert all(ended(thread) for thread, _ in waiting)
    assert all(isinstance(found[0], EngineUnavailable) and told in str(found[0]) for _, found in waiting)
    assert fleet.models.slot("a").num_failures == 1
    fleet.use("b").close()  # the room is free again
    del fleet.broken["a"]
    fleet.use("a").close()


def test_at_random_nobody_is_lost_and_memory_is_kept(make_fleet):
    fleet = make_fleet(100, wait=60.0, stay={"s": 20}, a=30, b=40, c=50, d=70)

    def client(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(12):
            with fleet.use(rng.choice("abcds")):
                fleet.check()
                time.sleep(rng.random() * 0.003)

    clients = [in_thread(client, seed) for seed in range(6)]
    for thread, found in clients:
        thread.join(60)
        assert not thread.is_alive()
        assert found == [None]
    assert all(slot.num_users == 0 for slot in fleet.models.slots)
    running = [service.info.name for service in fleet.made if service.state == "ready"]
    assert "".join(sorted(running)) == fleet.loaded()
    assert sum(slot.num_loads for slot in fleet.models.slots) == len(fleet.events) > 4


def test_a_model_that_there_is_not(make_fleet):
    with pytest.raises(InvalidRequest, match="'c' does not exist; this server has 's', 'a'") as refused:
        make_fleet(100, stay={"s": 20}, a=30).use("c")
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "model_not_found", "model")


def test_metrics_of_all_are_one_text(make_fleet):
    fleet = make_fleet(100, stay={"r": 20, "s": 20}, a=30, b=30)
    fleet.use("a").close()
    text = fleet.models.render_metrics().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) > 20
    for name in ("xlaserve:generation_tokens", "xlaserve:num_requests_running", "xlaserve:e2e_request_latency_seconds"):
        assert {sample.labels["model_name"] for sample in families[name].samples} == {"a", "r", "s"}
    loaded = {sample.labels["model_name"]: sample.value for sample in families["xlaserve:model_loaded"].samples}
    assert loaded == {"r": 1, "s": 1, "a": 1, "b": 0}
    loads = {sample.labels["model_name"]: sample.value for sample in families["xlaserve:model_loads"].samples}
    assert loads == {"r": 0, "s": 0, "a": 1, "b": 0}
    alone = {line for line in fleet.made[0].metrics.render().decode().splitlines() if "seconds" not in line}
    assert alone <= set(text.splitlines())


def test_one_is_unloaded_when_nobody_uses_it(make_fleet):
    fleet = make_fleet(100, wait=0.3, stay={"s": 10}, a=60)
    fleet.models.unload("a")  # which is not loaded
    with fleet.use("a"):
        with pytest.raises(EngineUnavailable, match="'a', which was to go, is in use"):
            fleet.models.unload("a")
        fleet.use("a").close()
    fleet.models._wait = 20.0
    fleet.models.unload("a")
    assert fleet.loaded() == "s"
    fleet.models.load("a")
    assert fleet.loaded() == "as"
    with pytest.raises(InvalidRequest, match="'s' stays"):
        fleet.models.unload("s")
