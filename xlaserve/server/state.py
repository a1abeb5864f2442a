"""What the server is doing: loading, ready, draining or stopped, and how many requests it works on. No flask here."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from xlaserve.errors import EngineUnavailable, ModelAsleep, Overloaded

if TYPE_CHECKING:
    from xlaserve.engine.served_models import ServedModels
    from xlaserve.engine.service import GenerationService

Phase = Literal["loading", "ready", "draining", "stopped"]

# A step that takes longer than this hangs: nothing compiles after start-up, and a step's tokens are bounded.
HUNG_SECONDS = 120.0


class Places:
    """Counts the requests being worked on; never more than `limit`, so that a thread is always free for /health."""

    def __init__(self, limit: int, retry_after: Callable[[], int] = lambda: 1):
        """`retry_after` gives the seconds until a place may be free."""
        self._limit = limit
        self._retry_after = retry_after
        self._taken = 0
        self._changed = threading.Condition()

    def take(self) -> Callable[[], None]:
        """Returns the function that gives the place back. Raises Overloaded at once when none is free."""
        with self._changed:
            if self._taken >= self._limit:
                message = f"The server is working on {self._limit} requests, its limit: try again in a moment."
                raise Overloaded(message, retry_after=self._retry_after())
            self._taken += 1
        return self._give_back

    def _give_back(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()

    def wait_until_idle(self, timeout: float) -> bool:
        """False if some place is still taken after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._taken == 0, timeout)


class ServerState:
    """Shared by the request threads and the thread that loads the models. `max_body` is in bytes.

    It is also a start-up Reporter (phase, progress, info), so that /ready can tell how far loading has come.
    """

    def __init__(self, *, max_requests: int, max_body: int):
        self.places = Places(max_requests, self._retry_after)
        self.max_body = max_body
        self._models: ServedModels | None = None
        self._phase: Phase = "loading"
        self._step = ""  # of loading
        self._progress: dict[str, Any] | None = None
        self._started = time.monotonic()

    def set_ready(self, models: "ServedModels") -> None:
        self._models = models
        self._phase = "ready"

    def drain(self) -> None:
        """From now on new requests get 503; running ones go on."""
        self._phase = "draining"

    def stop(self) -> None:
        """Ends what still runs: streams get an error event, others a 503."""
        self._phase = "stopped"

    def admit(self, stack: ExitStack) -> "ServedModels":
        """Takes a place, given back when `stack` closes. Raises EngineUnavailable, or Overloaded when none is free."""
        stack.callback(self.places.take())
        # Only now: a request that takes its place after drain() has begun must not be let in.
        return self.models()

    def models(self) -> "ServedModels":
        """Where requests are taken; else raises EngineUnavailable saying why not."""
        if self._phase in ("draining", "stopped"):
            raise EngineUnavailable("The server is shutting down.")
        return self.loaded_models()

    def loaded_models(self) -> "ServedModels":
        """Also of a server that takes no more requests. Raises EngineUnavailable while they load."""
        if self._models is None:
            raise EngineUnavailable("The model is still loading: see /ready.")
        return self._models

    def use(self, model: str | None, stack: ExitStack) -> "GenerationService":
        """That model's service, until `stack` closes; None: the first one's.

        Raises EngineUnavailable where it cannot take requests, and InvalidRequest for a model that is not served.
        """
        service = self.models().use(model, stack)
        _check_ready(service)
        return service

    def check_health(self) -> None:
        """Raises EngineUnavailable where one of the models that are loaded cannot take requests."""
        for service in self.models():
            _check_ready(service)

    def check_alive(self) -> None:
        """`check_health`, but that models may sleep."""
        for service in self.models():
            with suppress(ModelAsleep):
                _check_ready(service)

    def check_running(self, service: "GenerationService | None" = None) -> None:
        """Raises EngineUnavailable when requests that already run, on `service`, cannot finish any more."""
        if self._phase == "stopped":
            raise EngineUnavailable("The server has shut down before the request was finished.")
        if service is not None:
            _check_progress(service)

    def _retry_after(self) -> int:
        return min((service.retry_after() for service in self._models or ()), default=1)

    def detail(self) -> dict[str, Any]:
        """For /ready."""
        detail: dict[str, Any] = {"status": self._phase, "seconds": round(time.monotonic() - self._started, 1)}
        if self._phase == "loading":
            detail |= {"step": self._step, "progress": self._progress}
        elif self._models is not None:
            first = self._models.slots[0]
            detail |= {"model": first.name, "engine": first.state}
            if first.service is not None:
                detail["weights_version"] = first.service.weights_version
                detail |= {"sleep_level": first.service.asleep} if first.service.asleep else {}
            late = [service.startup.late() for service in self._models]
            detail["programs"] = {
                "buckets": [] if first.service is None else list(first.service.startup.buckets()),
                "left": sum(len(each.left) for each in late),  # of all models
                "failed": sum(len(each.failed) for each in late),
            }
            if len(self._models) > 1:
                detail["engines"] = {slot.name: slot.state for slot in self._models.slots}
        return detail

    def phase(self, name: str) -> None:
        self._step, self._progress = name, None

    def progress(self, name: str, done: int, total: int) -> None:
        self._progress = {"name": name, "done": done, "total": total}

    def info(self, key: str, value: Any, reason: str) -> None:
        """Resolved settings are the console's to show."""


def _check_ready(service: "GenerationService") -> None:
    if service.state == "asleep" and not service.wakes_itself:
        raise ModelAsleep("The model sleeps; /admin/wake wakes it.")
    if service.state not in ("ready", "asleep"):
        raise EngineUnavailable(f"The engine is {service.state}.")
    _check_progress(service)


def _check_progress(service: "GenerationService") -> None:
    seconds = service.seconds_since_progress()
    if seconds > HUNG_SECONDS:
        raise EngineUnavailable(f"The engine has made no progress for {seconds:.0f} seconds.")
