"""Folders with tokenizer files, against transformers; EOS and sampling defaults."""

import itertools
import json
import subprocess
import sys

import pytest
from transformers import AutoTokenizer, GemmaTokenizer, LlamaTokenizer, Qwen2Tokenizer

from tests import toys
from xlaserve.engine.tokenizer import eos_union, load_tokenizer, sampling_defaults
from xlaserve.engine.vocabulary import Vocabulary
from xlaserve.errors import CheckpointError, ConfigError, InvalidRequest

TEXTS = ["", "Hello world", " the  fox\n\nand é 日🌶", "</s>own<s>the", "the ▁ A."]
CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": " é"},
    {"role": "user", "content": "the"},
]


def vocabulary_of(vocabulary: Vocabulary):
    model = json.loads(vocabulary.backend.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def saved_by_transformers(kind):
    if kind == "qwen2":
        vocab, merges = vocabulary_of(toys.byte_level_vocabulary())
        return Qwen2Tokenizer(
            vocab=vocab | {"<|endoftext|>": len(vocab)}, merges=merges, chat_template=toys.CHAT_TEMPLATE
        )
    vocab, merges = vocabulary_of(toys.sentencepiece_vocabulary())
    if kind == "llama":
        return LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, chat_template=toys.CHAT_TEMPLATE)
    for token in ("<pad>", "<eos>", "<bos>", "<mask>"):
        vocab[token] = len(vocab)
    return GemmaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, chat_template=toys.CHAT_TEMPLATE)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen2"])
def test_a_folder_saved_by_transformers_gives_its_ids(kind, tmp_path):
    saved_by_transformers(kind).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path, None)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        if not text.startswith("<s>"):
            assert ours.encode(text) == theirs.encode(text)
    for first in range(0, ours.vocab_size, 5):
        ids = [first, (first * 7) % ours.vocab_size, ours.vocab_size - 1]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    for add_generation_prompt in (True, False):
        text = ours.apply_chat_template(CHAT, add_generation_prompt=add_generation_prompt)
        expected = theirs.apply_chat_template(CHAT, add_generation_prompt=add_generation_prompt)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == expected
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_ids == {theirs.eos_token_id}
    assert ours.special_ids == set(theirs.all_special_ids)
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_one_bos_however_the_prompt_begins(kind, tmp_path):
    make = toys.byte_level_vocabulary if kind == "byte-level" else toys.sentencepiece_vocabulary
    toys.write_tokenizer(make(add_bos=True, template=toys.CHAT_TEMPLATE), tmp_path, add_bos_token=True)
    tokenizer = load_tokenizer(tmp_path, None)
    bos = tokenizer.bos_id
    assert tokenizer.encode("") == [bos]
    for text in ("Hello", "<s>Hello", "<s><s>Hello"):
        ids = tokenizer.encode(text)
        assert (ids[0], ids.count(bos)) == (bos, 1)
        assert tokenizer.decode(ids) == "Hello"
    chat = tokenizer.encode(tokenizer.apply_chat_template(CHAT), add_special_tokens=False)
    assert (chat[0], chat.count(bos)) == (bos, 1)
    assert tokenizer.encode("the<s>Hello").count(bos) == 2  # only the beginning is special


@pytest.mark.parametrize("declared", [True, False, None])
def test_add_bos_token_counts_where_tokenizer_json_adds_none(declared, tmp_path):
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, add_bos_token=declared)
    tokenizer = load_tokenizer(tmp_path, None)
    assert tokenizer.encode("Hello")[0] == (tokenizer.bos_id if declared else tokenizer.encode("He")[0])
    toys.write_tokenizer(toys.byte_level_vocabulary(add_bos=True), tmp_path, add_bos_token=declared)
    assert load_tokenizer(tmp_path, None).encode("Hello")[0] == tokenizer.bos_id


def test_no_bos_is_invented():
    tokenizer = toys.byte_level_tokenizer()
    assert tokenizer.encode("") == []
    assert tokenizer.encode("<s>").count(tokenizer.bos_id) == 1


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path):
    vocabulary = toys.byte_level_vocabulary()
    vocabulary.backend.enable_truncation(3)
    vocabulary.backend.enable_padding(length=8)
    toys.write_tokenizer(vocabulary, tmp_path)
    assert load_tokenizer(tmp_path, None).encode("abcdefghijkl") == [*b"abcdefghijkl"]


def test_special_tokens_are_declared_in_several_places(tmp_path):
    fields = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    toys.write_tokenizer(
        toys.byte_level_vocabulary(),
        tmp_path,
        bos_token={"__type": "AddedToken", "content": "a", **fields},
        eos_token="b",
        added_tokens_decoder={"99": {"content": "c", "special": True, **fields}},
        extra_special_tokens=["d"],
    )
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "e"}))
    tokenizer = load_tokenizer(tmp_path, None)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (ord("a"), {ord("b")})
    assert set(b"abcd") < tokenizer.special_ids
    assert ord("e") not in tokenizer.special_ids
    assert tokenizer.decode(b"xaybzcd") == "xyz"

    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, eos_token="b")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "e", **fields}}))
    assert load_tokenizer(tmp_path, None).eos_ids == {ord("e")}


def test_where_the_chat_template_is(tmp_path):
    def rendered(**options):
        return load_tokenizer(tmp_path, None, **options).apply_chat_template([])

    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path)
    assert not load_tokenizer(tmp_path, None).has_chat_template
    with pytest.raises(InvalidRequest, match="--chat-template FILE"):
        rendered()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert rendered() == "processor"
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, chat_template="config {{ bos_token }}{{ pad_token }}")
    assert rendered() == "config <s>"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "default one"}]
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, chat_template=named)
    assert rendered() == "default one"
    (tmp_path / "chat_template.jinja").write_text("jinja file\n")
    assert rendered() == "jinja file"
    (tmp_path / "mine.jinja").write_text("mine {{ eos_token }}")
    assert rendered(chat_template=tmp_path / "mine.jinja") == "mine </s>"
    assert load_tokenizer(tmp_path, None).has_chat_template


def test_a_broken_chat_template_is_found_at_the_start(tmp_path):
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, chat_template="{% if %}")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: the chat template .*line 1.*--chat-template"):
        load_tokenizer(tmp_path, None)
    file = tmp_path / "mine.jinja"
    with pytest.raises(ConfigError, match=r"model\.chat_template: .*mine\.jinja: cannot be read"):
        load_tokenizer(tmp_path, None, chat_template=file)
    file.write_text("\n{% endfor %}")
    with pytest.raises(ConfigError, match=r"mine\.jinja: the chat template is not valid Jinja: line 2"):
        load_tokenizer(tmp_path, None, chat_template=file)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_broken_file_is_named(name, content, tmp_path):
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(tmp_path, None)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"5": {"content": "a"}}, "'a' is 5, but has id 97"),
        ({"a": {"content": "a"}}, "expected ids with the fields of a token"),
        ({"97": "a"}, "expected ids with the fields of a token"),
        (["a"], "expected ids with the fields of a token"),
    ],
)
def test_wrong_added_tokens_are_named(added, message, tmp_path):
    toys.write_tokenizer(toys.byte_level_vocabulary(), tmp_path, added_tokens_decoder=added)
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json: added_tokens_decoder: {message}"):
        load_tokenizer(tmp_path, None)


def test_without_tokenizer_json_transformers_converts_what_there_is(tmp_path):
    vocab, merges = vocabulary_of(toys.byte_level_vocabulary())
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)))
    fields = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = load_tokenizer(tmp_path, None)
    reference = toys.byte_level_tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(reference.encode(text))
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json.*tokenizer_config\.json, merges\.txt"):
        load_tokenizer(tmp_path, None)


def test_a_folder_without_any_tokenizer_serves_token_ids(tmp_path):
    tokenizer = load_tokenizer(tmp_path, None)
    assert tokenizer.vocab_size == 0
    assert tokenizer.decode([0, 1, 2]) == ""
    with pytest.raises(InvalidRequest, match="has no tokenizer"):
        tokenizer.encode("Hello")


def test_bytes_without_a_checkpoint():
    tokenizer = load_tokenizer(None, None)
    text = "\0 \n é日🌶"
    assert tokenizer.encode(text) == [*text.encode()]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (256, None, set())
    assert not tokenizer.special_ids


@pytest.mark.parametrize("tokenizer", [toys.byte_level_tokenizer(), toys.sentencepiece_tokenizer()])
def test_ids_beyond_the_vocabulary_are_no_text(tokenizer):
    strange = [-1, tokenizer.vocab_size, 2**31, 2**64, -(2**70)]
    assert tokenizer.decode(strange) == ""
    assert all(tokenizer.token_bytes(i) == b"" and tokenizer.token_text(i) == "" for i in strange)
    a, b = tokenizer.encode("ab", add_special_tokens=False)[-2:]
    assert tokenizer.decode([a, *strange, b]) == "ab"


def test_tokens_as_logprobs_show_them():
    tokenizer = toys.sentencepiece_tokenizer()
    ids = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
    assert tokenizer.token_bytes(ids["▁the"]) == b" the"
    assert tokenizer.token_text(ids["▁the"]) == " the"
    assert (tokenizer.token_bytes(ids["<0xE6>"]), tokenizer.token_text(ids["<0xE6>"])) == (b"\xe6", "\ufffd")
    assert tokenizer.token_text(ids["</s>"]) == "</s>"
    tokenizer = toys.byte_level_tokenizer()
    assert tokenizer.token_text(tokenizer.encode(" world")[0]) == " world"
    assert tokenizer.token_text(0xE6) == "\ufffd"


def test_a_lone_surrogate_is_the_requests_error():
    with pytest.raises(InvalidRequest, match="lone surrogate at 1"):
        toys.byte_level_tokenizer().encode("a\ud83d")


@pytest.mark.parametrize(("config", "generation"), [*itertools.product([None, 7, [7, 8]], [None, 9, [8, 9]])])
def test_eos_is_the_union_of_all_files(config, generation):
    tokenizer = toys.byte_level_tokenizer()
    files = [{} if value is None else {"eos_token_id": value} for value in (config, generation)]
    expected = {i for value in (config, generation) if value for i in (value if isinstance(value, list) else [value])}
    assert eos_union(tokenizer, *files) == expected | tokenizer.eos_ids
    assert eos_union(toys.byte_tokenizer(), *files) == expected
    assert eos_union(tokenizer, {"eos_token_id": None}, {"eos_token_id": []}) == tokenizer.eos_ids


@pytest.mark.parametrize("value", ["2", 1.5, [1, "2"], True, {}])
def test_a_wrong_eos_is_named(value):
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is"):
        eos_union(toys.byte_tokenizer(), {}, {"eos_token_id": value})


def test_sampling_defaults_are_what_the_file_says():
    assert sampling_defaults({}) == {}
    assert sampling_defaults({"do_sample": True, "top_p": None, "no_repeat_ngram_size": 3}) == {}
    rules = {"repetition_penalty": 1.1, "min_p": 0.05}
    for found in ({"temperature": 0.6, "top_k": 1, "top_p": 0.9}, {"top_k": 0}, rules):
        assert sampling_defaults(found | {"do_sample": False, "max_length": 20}) == found


@pytest.mark.parametrize("wrong", [{"top_k": -2}, {"top_k": 1.5}, {"temperature": "hot"}, {"top_p": 0}])
def test_wrong_sampling_defaults_are_named(wrong):
    (name,) = wrong
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {name} is .*--generation-config none"):
        sampling_defaults(wrong)


def test_importing_the_tokenizer_is_cheap():
    program = (
        "import sys, xlaserve.engine.tokenizer, xlaserve.engine.output_processor\n"
        "print([name for name in ('jax', 'transformers', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
