"""Random schemas through the whole engine, on a random model: an answer that ended by itself is what was asked for."""

import json
import shutil

import jsonschema
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import tiny_models
from tests.toys import write_tokenizer
from xlaserve.engine.llm import LLM
from xlaserve.engine.vocabulary import byte_vocabulary
from xlaserve.grammar import Grammar
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams

EOS = 4  # tokens are bytes: one that JSON cannot have


@pytest.fixture(scope="module")
def llm(tmp_path_factory, cache_dir):
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tiny_models.folder("llama"), folder, dirs_exist_ok=True)
    write_tokenizer(byte_vocabulary(), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": EOS}))
    overrides = ["model.dtype=float32", "model.max_model_len=256", "scheduler.max_num_seqs=4", "cache.num_blocks=40"]
    with LLM(str(folder), overrides=[*overrides, "scheduler.max_num_batched_tokens=8"], cache_dir=cache_dir) as llm:
        yield llm


def ruled(schema, seed: int = 0, **options) -> SamplingParams:
    grammar = Grammar("json_schema", json.dumps(schema))
    return SamplingParams(**{"max_tokens": 200, "seed": seed} | options, grammar=grammar)


names = st.sampled_from(["a", "the b", "é", '"', "\\", ""])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-999, 999), st.sampled_from(["", "x y", "日\n", '"']))
leaves = st.one_of(
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
              st.integers(-99, 99), st.integers(0, 200)),
    st.builds(lambda size, more: {"type": "string", "minLength": size, "maxLength": size + more},
              st.integers(0, 3), st.integers(0, 3)),
    st.builds(lambda values: {"enum": values}, st.lists(scalars, min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, scalars),
    st.sampled_from([
        {"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]},
        {"type": "string", "pattern": "^[ab]{1,4}$"},
        {"type": "string", "format": "date"}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 70},
    ]),
)  # fmt: skip


def _object(properties: dict, required: list[bool]) -> dict:
    needed = [name for name, is_needed in zip(properties, required, strict=False) if is_needed]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


plain = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(names, inner, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3)),
        st.builds(lambda items, n, more: {"type": "array", "items": items, "minItems": n, "maxItems": n + more},
                  inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)},
                  st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=6,
)  # fmt: skip
schemas = plain | st.builds(lambda inner: {"$defs": {"d/~": inner}, "$ref": "#/$defs/d~1~0"}, plain)


def test_what_ends_by_itself_parses_and_validates_and_most_does(llm):
    ended = []

    @settings(max_examples=12, phases=[Phase.generate], deadline=None, derandomize=True, database=None)
    @given(asked=st.lists(schemas, min_size=2, max_size=4), temperature=st.sampled_from([0.0, 0.7, 1.0]))
    def check(asked, temperature):
        compiled = sum(LOG.compiled().values())
        params = [ruled(schema, seed, temperature=temperature) for seed, schema in enumerate(asked)]
        free = SamplingParams(max_tokens=20, temperature=0.0)
        *answers, last = llm.generate([[7, 8, 9]] * (len(asked) + 1), [*params, free])
        for schema, answer in zip(asked, answers, strict=True):
            if answer.finish_reason == "stop":
                assert answer.token_ids[-1] == EOS
                jsonschema.validate(json.loads(answer.text), schema, cls=jsonschema.Draft202012Validator)
                ended.append(schema)
            else:
                assert answer.finish_reason == "length"
        assert last.token_ids == llm.generate([[7, 8, 9]], free)[0].token_ids, "others are not touched"
        assert sum(LOG.compiled().values()) == compiled

    check()
    assert len(ended) > 15


def test_a_mixed_batch_gives_what_each_gives_alone(llm):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 5, "maxItems": 5}
    params = [ruled(schema, 3), SamplingParams(max_tokens=60, seed=5), ruled(schema, 7, temperature=0.0, logprobs=3)]
    params += [SamplingParams(max_tokens=60, temperature=0.0, logprobs=2), ruled({"type": "integer"}, 1)]
    alone = [llm.generate([[1, 2, 3]], each)[0] for each in params]
    before = llm.service.stats()["preemptions"]
    together = llm.generate([[1, 2, 3]] * len(params), params)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert json.loads(alone[0].text)
    assert llm.service.stats()["preemptions"] == before


@pytest.mark.parametrize("n", [1, 3])
def test_tokens_that_are_given_change_nothing(llm, n):
    """With logprobs each is sampled."""
    names = {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in ("identification", "satisfaction")}
    schema = {"type": "object", "properties": names, "required": [*names], "additionalProperties": False}
    for seed in range(3):
        sampled = llm.generate([[1, 2, 3]], ruled(schema, seed, n=n, logprobs=0))
        given = llm.generate([[1, 2, 3]], ruled(schema, seed, n=n))
        assert [each.token_ids for each in given] == [each.token_ids for each in sampled]


def test_state_survives_preemption(llm):
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 70}
    params = [ruled(schema, seed, max_tokens=200) for seed in range(4)]
    alone = [llm.generate([[1, 2, 3, seed]], each)[0].token_ids for seed, each in enumerate(params)]
    before = llm.service.stats()["preemptions"]
    together = llm.generate([[1, 2, 3, seed] for seed in range(4)], params)
    assert [each.token_ids for each in together] == alone
    assert llm.service.stats()["preemptions"] > before


def test_choices_have_masks_of_their_own(llm):
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 4, "maxItems": 4}
    answers = llm.generate([[5, 6]], ruled(schema, 9, n=4))
    assert len(answers) == 4
    assert len({answer.text for answer in answers}) > 1
    for answer in answers:
        jsonschema.validate(json.loads(answer.text), schema)
