"""From YAML and overrides to a Config, or to an error that names the key."""

import pytest

from xlaserve.config import Config, load_config
from xlaserve.errors import ConfigError


@pytest.mark.parametrize("section", [name for name in Config.model_fields if name != "seed"])
def test_a_section_of_comments_only_is_empty(tmp_path, section):
    path = tmp_path / "config.yaml"
    path.write_text(f"{section}:\n  # nothing set here\nseed: 3\n")
    assert load_config(path) == Config(seed=3)


def test_an_override_fills_a_section_of_comments_only(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("cache:\n  # block_size: 16\n")
    assert load_config(path, ["cache.block_size=8"]).cache.block_size == 8


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "cache:\n  block_size: 8\n  block_size: 16\n"])
def test_a_key_that_stands_twice_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config.yaml(.|\n)*stands twice(.|\n)*line"):
        load_config(path)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("modle=null", "unknown key 'modle'"),
        ("seed=null", "seed"),
        ("model.source=''", "model.source"),
        ("model.source.x=1", "model.source"),
        ("model.dtype=fp8", "'float32'"),
        ("cache.dtype=fp4", "'int8' or 'fp8'"),
        ("cache.blocksize=8", "'cache.block_size'"),
        ("server=5", "server"),
        ("scheduler.policy=lifo", "'fcfs', 'priority' or 'fair'"),
        ("scheduler.long_prefill_token_threshold=0", "scheduler.long_prefill_token_threshold is '0'"),
        ("server.max_waiting_tokens=0", "server.max_waiting_tokens is '0'"),
        ("speculative.method=eagle", "speculative.method is 'eagle': Input should be 'ngram'"),
        ("speculative.num_speculative_tokens=0", "speculative.num_speculative_tokens is '0'"),
        ("speculative.num_drafts=2", "unknown key 'speculative.num_drafts'"),
        ("speculative={prompt_lookup_min: 4, prompt_lookup_max: 3}", "prompt_lookup_min (4) is more than"),
        ("a..b=1", "unknown key 'a'"),
        ("nonsense", "section.key=value"),
        ("=1", "section.key=value"),
        ("cache.block_size=[", "not valid YAML"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_by_key(override, told):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cache.num_blocks=9", "cache.memory=1MiB"),
        ("cache.num_blocks=9", "cache.memory_utilization=0.9"),
        ("cache.memory=1MiB", "cache.memory_utilization=0.9"),
    ],
)
def test_the_pool_has_one_size(first, second):
    one, other = (setting.split("=")[0] for setting in (first, second))
    with pytest.raises(ConfigError, match=rf"^the settings: cache: {one} \(.*\) and {other} \(.*\) contradict"):
        load_config(None, [first, second])
    load_config(None, [first, second, f"{one}=null"])


@pytest.mark.parametrize("value", ["0", "-0.1", "1.01", "much"])
def test_a_share_of_memory_is_one(value):
    with pytest.raises(ConfigError, match=r"cache.memory_utilization is "):
        load_config(None, [f"cache.memory_utilization={value}"])


def test_host_memory_without_a_prefix_cache_is_refused():
    with pytest.raises(ConfigError, match=r"cache.host_memory \(1024\) and cache.prefix_caching \(False\) contradict"):
        load_config(None, ["cache.host_memory=1KiB", "cache.prefix_caching=false"])


TWO = ["models.a.model.source=x", "models.b.model.source=y", "cache.memory=1MiB"]


def test_each_of_several_models_has_its_own_and_the_common():
    overrides = [*TWO, "scheduler.max_num_seqs=4", "models.b.cache.num_blocks=9", "models.b.scheduler.max_num_seqs=8"]
    a, b = load_config(None, [*overrides, "model.dtype=float32", "models.b.model.dtype=float16"]).deployments()
    assert (a.model.source, a.model.served_name, b.model.source, b.model.served_name) == ("x", "a", "y", "b")
    assert (a.model.dtype, b.model.dtype) == ("float32", "float16")
    assert (a.scheduler.max_num_seqs, b.scheduler.max_num_seqs) == (4, 8)
    assert (a.cache.memory, a.cache.num_blocks, b.cache.memory, b.cache.num_blocks) == (2**20, None, None, 9)
    assert a.models == b.models == {}


def test_one_model_alone_is_its_own_deployment():
    config = load_config(None, ["model.source=x"])
    assert config.deployments() == [config]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.source=demo"], "the settings: model.source and models contradict"),
        (["model.served_name=demo"], "model.served_name and models contradict"),
        (["models.c.model.dtype=float32"], "models.c.model.source"),
        (["models.c={}"], "models.c.model"),
        (["cache.memory=null"], "models.a.cache"),
        (["models.a.model.served_name=q"], "models.a.model.served_name: leave it out"),
        (["models.a.cach.memory=1MiB"], "Did you mean 'models.a.cache'?"),
        (["models.a.server.port=1"], "unknown key 'models.a.server'"),
        (["cache.memory=null", "cache.memory_utilization=0.6"], "a 0.6, b 0.6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_several_models_cannot_be_is_refused(overrides, told):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*TWO, *overrides])
    assert told in str(caught.value)


def test_models_on_demand_share_a_memory_that_must_be_given():
    demand = [*TWO, "models.b.on_demand=true"]
    with pytest.raises(ConfigError, match=r"models.b.on_demand: say by server.models_memory"):
        load_config(None, demand)
    assert load_config(None, [*demand, "server.models_memory=1GiB"]).models["b"].on_demand


@pytest.mark.parametrize(
    ("section", "lookup", "num_drafts"),
    [
        ("{}", (3, 5), 0),
        ("{num_speculative_tokens: 4}", (3, 5), 0),
        ("{method: ngram}", (3, 5), 7),
        ("{method: ngram, num_speculative_tokens: 4, prompt_lookup_min: 2}", (2, 5), 4),
        ("{method: ngram, prompt_lookup_min: 9}", (9, 9), 7),
        ("{method: ngram, prompt_lookup_max: 2}", (2, 2), 7),
        ('{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 8}', (1, 8), 7),
    ],
)
def test_what_is_left_open_of_speculation(section, lookup, num_drafts):
    found = load_config(None, [f"speculative={section}"]).speculative
    assert (found.lookup, found.num_drafts) == (lookup, num_drafts)


def test_each_of_several_models_may_have_drafts():
    model = {"model": {"source": "demo"}, "cache": {"memory": 2**20}}
    config = Config.model_validate(
        {
            "models": {"a": model | {"speculative": {"num_speculative_tokens": 3}}, "b": model},
            "speculative": {"method": "ngram"},
        }
    )
    assert [each.speculative.num_drafts for each in config.deployments()] == [3, 7]
