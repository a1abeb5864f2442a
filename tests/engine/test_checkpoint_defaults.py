"""What a checkpoint's files say of EOS and of sampling, over HTTP on a tiny model: the request wins, then the file."""

import json
import shutil
from contextlib import contextmanager

import pytest

from tests import tiny_models, toys
from tests.recording import RecordingReporter
from tests.server.harness import served
from xlaserve.engine.llm import LLM
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.app import create_app
from xlaserve.server.state import ServerState

PROMPT = tiny_models.prompt(20)
NUM_TOKENS = 12
LIMITS = ["model.dtype=float32", "model.max_model_len=64", "model.served_name=tiny"]
LIMITS += ["scheduler.max_num_seqs=1", "scheduler.max_num_batched_tokens=4"]  # few programs to compile


@pytest.fixture
def make(tmp_path, cache_dir):
    """make(config.json's eos, generation_config, overrides): (ask, the engine, the settings told)."""

    @contextmanager
    def made(eos, generation_config: dict, *overrides: str, template: str | None = None):
        folder, reporter = tmp_path / "model", RecordingReporter()
        shutil.copytree(tiny_models.folder("llama"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}))
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
        toys.write_tokenizer(toys.byte_level_vocabulary(template=template), folder)
        with LLM(str(folder), overrides=[*LIMITS, *overrides], cache_dir=cache_dir, reporter=reporter) as llm:
            state = ServerState(max_requests=1, max_body=100_000)
            state.set_ready(served(llm.service))
            client = create_app(state).test_client()

            def ask(**fields) -> dict:
                body = {"model": "tiny", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "return_token_ids": True}
                return client.post("/v1/completions", json=body | fields).get_json()["choices"][0]

            yield ask, llm, reporter.settings

    return made


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    return tiny_models.greedy("llama", [len(PROMPT)], NUM_TOKENS)[0]


@pytest.mark.parametrize("where", ["config", "generation_config", "both"])
def test_any_files_eos_ends_the_output(make, greedy, where):
    """The tokenizer's own EOS and the other file's count, too; a sampling default beside it changes nothing."""
    later, unused = greedy[7], 255 - greedy[7]
    first = greedy.index(later)
    assert unused not in greedy
    eos = {"config": (later, [unused]), "generation_config": (unused, [unused, later]), "both": (later, later)}
    config_eos, generation_eos = eos[where]
    with make(config_eos, {"eos_token_id": generation_eos, "temperature": 0.6}) as (ask, llm, _):
        assert llm.info.eos_ids >= llm.tokenizer.eos_ids | {later}
        choice = ask(temperature=0)
        assert (choice["token_ids"], choice["finish_reason"]) == (greedy[: first + 1], "stop")
        assert choice["text"] == llm.tokenizer.decode(greedy[:first])
        assert ask(temperature=0, ignore_eos=True)["token_ids"] == greedy
        (completion,) = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=NUM_TOKENS))
        assert (completion.token_ids, completion.finish_reason) == (greedy[: first + 1], "stop")


def test_the_files_sampling_defaults_hold_where_the_request_is_silent(make, greedy):
    """top_k 1 is greedy at any temperature, so the seed does not matter."""
    with make(None, {"temperature": 1.9, "top_k": 1}) as (ask, llm, settings):
        assert settings["sampling defaults"][0] == "temperature 1.9, top_k 1"
        for fields in ({"seed": 1}, {"seed": 2}, {"temperature": 1, "seed": 3}, {"temperature": 0}):
            assert ask(**fields)["token_ids"] == greedy
        assert llm.generate([PROMPT])[0].token_ids[:NUM_TOKENS] == greedy
        for fields in ({"top_k": -1}, {"top_k": 0}, {"top_k": 200}):
            assert ask(seed=1, **fields)["token_ids"] != greedy


def test_the_files_sampling_defaults_can_be_switched_off(make, greedy):
    """What is not said anywhere is OpenAI's default: temperature 1 over the whole vocabulary, no top_k of 50."""
    with make(None, {"temperature": 1.9, "top_k": 1}, "model.generation_config=none") as (ask, _, settings):
        assert settings["sampling defaults"][0] == "OpenAI's"
        plain = {"temperature": 1, "top_k": 0, "top_p": 1}
        for seed in (1, 2, 3):
            assert ask(seed=seed) == ask(seed=seed, **plain)
            assert ask(seed=seed)["token_ids"] != greedy


def test_the_template_tells_how_calls_and_reasoning_are_written(make):
    template = "{% for t in tools %}<tool_call>{% endfor %}{{ '</think>' }}"
    with make(1, {}, template=template) as (_, llm, settings):
        assert (llm.info.tool_parser, llm.info.thinks) == ("hermes", True)
        assert settings["tool parser"] == ("hermes", "model.tool_parser: auto")
        assert settings["reasoning parser"] == ("think", "model.reasoning_parser: auto")


def test_the_config_wins_over_the_template(make):
    with make(1, {}, "model.tool_parser=none", "model.reasoning_parser=think", template="<tool_call>") as (_, llm, _):
        assert (llm.info.tool_parser, llm.info.thinks) == (None, True)
