"""Two real models of which memory holds one: they take turns, and what goes leaves no arrays behind."""

import gc
from contextlib import ExitStack

import jax

from tests import tiny_models
from tests.server.tiny_server import SETTINGS
from xlaserve.config import load_config
from xlaserve.engine.generations import Generations, collect
from xlaserve.engine.reporter import SilentReporter
from xlaserve.engine.start_models import start_models
from xlaserve.sampling_params import SamplingParams


def answer(models, name: str) -> list[int]:
    with ExitStack() as stack:
        service = models.use(name, stack)
        params = SamplingParams(max_tokens=6, temperature=0.0)
        (completion,) = collect(Generations(service, [[5, 6, 7]], params, "test"))
        return completion.token_ids


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def test_they_take_turns_and_leave_nothing(cache_dir):
    common = [
        f"{key}={value}" for key, value in SETTINGS.items() if key not in ("model.served_name", "scheduler.policy")
    ]
    overrides = [*common, "server.models_memory=1MiB"]
    for name in ("llama", "qwen3"):
        overrides += [f"models.{name}.model.source={tiny_models.folder(name)}", f"models.{name}.on_demand=true"]
    before = live_bytes()
    models = start_models(load_config(None, overrides), cache_dir=cache_dir, reporter=SilentReporter())
    assert live_bytes() == before
    alone, taken = {}, {}
    for name in ("llama", "qwen3"):
        alone[name] = answer(models, name)
        taken[name] = live_bytes() - before
    assert alone["llama"] != alone["qwen3"]
    for name in ("llama", "qwen3", "llama"):
        assert answer(models, name) == alone[name]
        assert [service.info.name for service in models] == [name]
        assert live_bytes() - before == taken[name]
    for service in models:
        assert service.shutdown(10)
