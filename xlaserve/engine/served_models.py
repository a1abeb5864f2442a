"""The models of one server by their names: those that stay, and those that come and go on demand.

What is on demand is loaded by its first request, and goes when another needs its memory: first whoever has not been
asked for longest. Requests wait for a model that is being loaded, for a bounded time.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

from xlaserve.engine.model_metrics import ModelMetrics
from xlaserve.engine.service import GenerationService
from xlaserve.errors import EngineUnavailable, InvalidRequest, XlaserveError

_logger = logging.getLogger(__name__)

MakeRoom = Callable[[int], None]  # called with the bytes that a model will take, before it takes them
SHUTDOWN_SECONDS = 10.0  # for an engine that nobody uses


@dataclass(eq=False)
class Slot:
    """One model and what is going on with it; guarded by the lock of its ServedModels, but for `name` and `start`."""

    name: str
    start: Callable[[MakeRoom], GenerationService] | None = None  # None: it stays
    service: GenerationService | None = None
    num_bytes: int = 0  # of weights and KV pools
    num_users: int = 0  # requests that may use its engine
    last_used: float = 0.0
    is_loading: bool = False
    is_leaving: bool = False  # newcomers wait, those who use it finish
    error: str = ""  # of the last time that it could not be loaded
    num_loads: int = 0
    num_failures: int = 0

    @property
    def state(self) -> str:
        """For /ready."""
        if self.is_loading or self.service is None:
            return "loading" if self.is_loading else "not loaded"
        return "leaving" if self.is_leaving else self.service.state


class ServedModels:
    """Iterates over the services of those that are loaded.

    slots: those that stay have a service. memory: bytes for all together, where some are on demand. wait: seconds that
    a request waits for its model, and a model for room.
    """

    def __init__(self, slots: Sequence[Slot], *, memory: int = 0, wait: float = 60.0):
        self._slots = {slot.name: slot for slot in slots}
        assert len(self._slots) == len(slots) > 0
        self._memory = memory
        self._wait = wait
        self._changed = threading.Condition()
        self._loading = threading.Lock()  # one model at a time: what room there is, is for one to take
        self.registry = CollectorRegistry()
        self.registry.register(ModelMetrics(self))

    def __iter__(self) -> Iterator[GenerationService]:
        return iter([slot.service for slot in self._slots.values() if slot.service is not None])

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> Sequence[Slot]:
        return tuple(self._slots.values())

    def slot(self, name: str | None) -> Slot:
        """None: the first. Raises InvalidRequest (404) naming the models that there are."""
        if name is None:
            return self.slots[0]
        if name not in self._slots:
            known = ", ".join(map(repr, self._slots))
            message = f"The model {name[:200]!r} does not exist; this server has {known}."
            raise InvalidRequest(message, param="model", code="model_not_found", status=404)
        return self._slots[name]

    def use(self, name: str | None, stack: ExitStack) -> GenerationService:
        """The service of a model, which stays loaded until `stack` closes; waits while it is loaded.

        Raises InvalidRequest for a model that there is not, and EngineUnavailable when it takes too long or cannot be.
        """
        slot = self.slot(name)
        until = time.monotonic() + self._wait
        with self._changed:
            failures = slot.num_failures
            while slot.service is None or slot.is_leaving:
                if slot.num_failures != failures:
                    raise EngineUnavailable(f"The model {slot.name!r} cannot be loaded: {slot.error}")
                if slot.service is None and not slot.is_loading:
                    slot.is_loading = True
                    threading.Thread(target=self._load, args=(slot,), name=f"load {slot.name}", daemon=True).start()
                if not self._changed.wait(until - time.monotonic()) and time.monotonic() >= until:
                    raise EngineUnavailable(f"The model {slot.name!r} is still loading: try again in a moment.")
            slot.num_users += 1
            slot.last_used = time.monotonic()
            stack.callback(self._leave, slot)
            return slot.service

    def load(self, name: str) -> None:
        """As its first request would; nothing where it is loaded. Raises as `use`."""
        with ExitStack() as stack:
            self.use(name, stack)

    def unload(self, name: str) -> None:
        """Sends a model on demand away, once nobody uses it; its next request loads it again.

        Raises InvalidRequest for one that stays, and EngineUnavailable when it is in use for too long.
        """
        slot = self.slot(name)
        if slot.start is None:
            raise InvalidRequest(f"The model {name!r} stays: it is not on demand.", param="model", status=409)
        until = time.monotonic() + self._wait
        if not self._loading.acquire(timeout=self._wait):
            raise EngineUnavailable("Another model is being loaded.")
        try:
            with self._changed:
                if slot.service is None:
                    return
                slot.is_leaving = True
            self._wait_until_unused(slot, until)
            self._unload(slot)
        finally:
            self._loading.release()

    def render_metrics(self) -> bytes:
        """The text that Prometheus scrapes, of all models."""
        return generate_latest(self.registry)

    def _leave(self, slot: Slot) -> None:
        with self._changed:
            slot.num_users -= 1
            slot.last_used = time.monotonic()
            self._changed.notify_all()

    def _load(self, slot: Slot) -> None:
        assert slot.start is not None
        with self._loading:
            try:
                service = slot.start(lambda num_bytes: self._make_room(slot, num_bytes))
            except Exception as error:
                _logger.exception("the model %r cannot be loaded", slot.name)
                self._has_failed(slot, str(error) if isinstance(error, XlaserveError) else "the server's log says why.")
                return
            with self._changed:
                slot.service = service
                slot.is_loading = False
                slot.num_loads += 1
                slot.last_used = time.monotonic()
                self._changed.notify_all()

    def _has_failed(self, slot: Slot, error: str) -> None:
        with self._changed:
            slot.num_bytes = 0
            slot.is_loading = False
            slot.error = error
            slot.num_failures += 1
            self._changed.notify_all()

    def _make_room(self, slot: Slot, num_bytes: int) -> None:
        """Sends others away until `num_bytes` are free. Raises EngineUnavailable."""
        until = time.monotonic() + self._wait
        stay = sum(each.num_bytes for each in self.slots if each.start is None)
        if num_bytes > self._memory - stay:
            raise EngineUnavailable(
                f"it takes {num_bytes:,} bytes, and server.models_memory leaves {self._memory - stay:,} for such models"
            )
        while (victim := self._next_to_go(num_bytes)) is not None:
            self._wait_until_unused(victim, until)
            self._unload(victim)
        with self._changed:
            slot.num_bytes = num_bytes

    def _next_to_go(self, num_bytes: int) -> Slot | None:
        """None: there is room."""
        with self._changed:
            if num_bytes + sum(each.num_bytes for each in self.slots) <= self._memory:
                return None
            loaded = (each for each in self.slots if each.start is not None and each.service is not None)
            victim = min(loaded, key=lambda each: each.last_used)
            victim.is_leaving = True
            return victim

    def _wait_until_unused(self, slot: Slot, until: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: slot.num_users == 0, until - time.monotonic()):
                slot.is_leaving = False
                self._changed.notify_all()
                raise EngineUnavailable(f"The model {slot.name!r}, which was to go, is in use.")

    def _unload(self, slot: Slot) -> None:
        """Of a slot that nobody uses."""
        assert slot.service is not None
        slot.service.shutdown(SHUTDOWN_SECONDS)
        with self._changed:
            slot.service = None
            slot.num_bytes = 0
            slot.is_leaving = False
            self._changed.notify_all()
        gc.collect()  # or its arrays stay until Python finds that nothing holds them
