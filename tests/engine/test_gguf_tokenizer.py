"""Tokenizers from GGUF metadata: small made-up vocabularies, and the real ones against recorded ids."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests import toys
from xlaserve.engine.detokenizer import make_detokenizer
from xlaserve.engine.spelling import CHAR_OF_BYTE
from xlaserve.engine.tokenizer import load_tokenizer
from xlaserve.errors import CheckpointError

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
TEXTS = ["", "Hello world", " the  fox\n\nand é 日🌶", "</s>own<s>the", "Hello<unk> A.", "the\tfox "]


def spell(text):
    return "".join(CHAR_OF_BYTE[byte] for byte in text.encode())


def metadata(**fields):
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def byte_level_metadata(pre="gpt-2", words=(), user_defined=(), **fields):
    """The bytes, `words` each with one merge per character, then user-defined tokens, <s> and </s>."""
    tokens, merges = [CHAR_OF_BYTE[byte] for byte in range(256)], []
    for word in map(spell, words):
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    types = [1] * len(tokens) + [4] * len(user_defined) + [3, 3]
    tokens += [*user_defined, "<s>", "</s>"]
    ids = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1}
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges} | ids | fields
    return metadata(**fields)


def sentencepiece_metadata(**fields):
    """The toy SentencePiece vocabulary, its merges told only by the scores."""
    model = json.loads(toys.sentencepiece_vocabulary().backend.to_str())["model"]
    tokens = list(model["vocab"])
    ranks = {"".join(merge): rank for rank, merge in enumerate(model["merges"])}
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    fields = {
        "model": "llama",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "scores": np.array([-ranks.get(token, 1000) for token in tokens], np.float32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | fields
    return metadata(**fields)


def words_of(tokenizer, text):
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("space_prefix", [True, False])
def test_merges_follow_from_the_scores(space_prefix):
    tokenizer = load_tokenizer(None, sentencepiece_metadata(add_space_prefix=space_prefix))
    reference = toys.sentencepiece_tokenizer(space_prefix=space_prefix)
    for text in TEXTS:
        if "<unk>" not in text:  # the toy's is an ordinary token
            assert tokenizer.encode(text) == reference.encode(text)
            assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(reference.encode(text))
    assert tokenizer.encode("日")[-3:] == [3 + byte for byte in "日".encode()]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_ids) == (1, {2}, {0, 1, 2})
    assert tokenizer.encode("<unk>", add_special_tokens=False) == [0]
    assert words_of(tokenizer, "<0x41>") != ["A"]  # no text reaches a byte token by its name


def test_a_better_token_is_merged_first():
    scores = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0}

    def tokenizer_of(scores):
        types = [2] + [1] * len(scores)
        fields = {"tokens": ["<unk>", *scores], "scores": [0.0, *scores.values()], "token_type": types}
        fields |= {"model": "llama", "unknown_token_id": 0, "add_space_prefix": False, "add_bos_token": False}
        return load_tokenizer(None, metadata(**fields))

    assert words_of(tokenizer_of(scores), "abcab") == ["a", "bc", "ab"]
    assert words_of(tokenizer_of(scores | {"abc": -3.0}), "abcab") == ["abc", "ab"]


def test_user_defined_tokens_stay_whole_and_are_text():
    tokenizer = load_tokenizer(None, byte_level_metadata(user_defined=["<tool>", "    "], words=["  "]))
    assert words_of(tokenizer, "a<tool>b") == ["a", "<tool>", "b"]
    assert words_of(tokenizer, "a      b") == ["a", "    ", " ", " ", "b"]
    assert tokenizer.decode(tokenizer.encode("a<tool>    b</s>")) == "a<tool>    b"
    assert {tokenizer.token(i) for i in tokenizer.special_ids} == {"<s>", "</s>"}


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("default", "ab  12 'll\n\n3", "ab| | 12| '|ll|\n|\n|3"),
        ("gpt-2", "x12345", "x|12345"),
        ("smollm", "ab 12\n\n3", "ab| |1|2|\n\n|3"),
        ("starcoder", "x12", "x|1|2"),
        ("refact", "x12", "x|1|2"),
        ("command-r", "x12 e\u0301", "x|1|2| é"),
        ("llama-bpe", "HE'LL 1234\n\n x", "HE|'LL| |123|4|\n\n| x"),
        ("llama3", "(ab) 12345!\n", "(ab|)| |123|45|!\n"),
        ("smaug-bpe", "12345", "123|45"),
        ("qwen2", "it's 123 e\u0301!\r\nx", "it|'s| |1|2|3| é|!\r\n|x"),
        ("deepseek-r1-qwen", "12", "1|2"),
        ("tekken", "camelCaseWord 12 a/b/\n", "camel|Case|Word| |1|2| a|/b|/\n"),
        ("gpt-4o", "isn't CamelCase 1234", "isn't| Camel|Case| |123|4"),
        ("llama4", "12345", "123|45"),
        ("deepseek-v3", "x1234 日本!ab !c", "x|123|4| |日本|!ab| !|c"),
        ("deepseek-coder", "ab 12\n\n日本x !", "ab| |1|2|\n|\n|日本|x| !"),
        ("falcon", "a.b 1234", "a|.|b| |123|4"),
    ],
)
def test_words_are_cut_by_the_rule_that_the_file_names(pre, text, expected):
    """Every word of the expected cut is a token, and so is the whole text: only the rule keeps it apart."""
    pieces = expected.split("|")
    words = [*dict.fromkeys(pieces), "".join(pieces)]
    fields = byte_level_metadata(pre, words=words, add_bos_token=False)
    assert words_of(load_tokenizer(None, fields), text) == pieces


def test_whole_words_go_before_merges_where_the_rule_says_so():
    fields = byte_level_metadata("llama-bpe", words=["ab", "bc"])
    fields["tokenizer.ggml.tokens"].insert(258, "abc")  # no merge leads to it
    fields["tokenizer.ggml.token_type"].insert(258, 1)
    fields |= {"tokenizer.ggml.bos_token_id": 259, "tokenizer.ggml.eos_token_id": 260}
    assert words_of(load_tokenizer(None, fields), "abc") == ["abc"]
    fields["tokenizer.ggml.pre"] = "qwen2"
    assert words_of(load_tokenizer(None, fields), "abc") == ["ab", "c"]


@pytest.mark.parametrize(
    ("fields", "adds"),
    [
        (byte_level_metadata(), False),
        (byte_level_metadata(add_bos_token=True), True),
        (byte_level_metadata("llama-bpe"), True),
        (byte_level_metadata("llama-bpe", add_bos_token=False), False),
        (sentencepiece_metadata(), True),
        (sentencepiece_metadata(add_bos_token=False), False),
    ],
)
def test_bos(fields, adds):
    tokenizer = load_tokenizer(None, fields)
    assert (tokenizer.encode("Hello")[0] == tokenizer.bos_id) is adds
    assert tokenizer.encode("<s>Hello").count(tokenizer.bos_id) == 1
    assert tokenizer.encode("Hello", add_special_tokens=False)[0] != tokenizer.bos_id


def test_what_ends_the_output():
    for ids in ({}, {"eos": 5}, {"eos": 5, "eot": 6}, {"eos": 5, "eot": 6, "eom": 7}):
        fields = {"eos_token_id": None} | {f"{name}_token_id": i for name, i in ids.items()}
        assert load_tokenizer(None, byte_level_metadata(**fields)).eos_ids == set(ids.values())
    assert load_tokenizer(None, byte_level_metadata(eos_token_id=10**6)).eos_ids == set()
    turns = byte_level_metadata(user_defined=["<|im_end|>", "<end_of_turn>"], eos_token_id=5)
    turns["tokenizer.chat_template"] = "{{ messages[0].content }}<|im_end|>"
    assert load_tokenizer(None, turns).eos_ids == {5, 256}


def test_the_chat_template_is_the_files():
    fields = byte_level_metadata() | {"tokenizer.chat_template": toys.CHAT_TEMPLATE}
    tokenizer = load_tokenizer(None, fields)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "<s>[user]hi</s>[assistant]"
    assert tokenizer.encode(text, add_special_tokens=False).count(tokenizer.bos_id) == 1
    fields["tokenizer.chat_template"] = "{% if %}"
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template: the chat template is not valid Jinja"):
        load_tokenizer(None, fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (byte_level_metadata("strange"), "pre is 'strange'; expected one of .*llama-bpe.*smollm"),
        (byte_level_metadata(model="bert"), "model is 'bert'; expected gpt2 or llama"),
        (byte_level_metadata(model=None), "model is missing"),
        (byte_level_metadata(tokens=None), "tokens is None; expected a list"),
        (byte_level_metadata(merges=None), "merges is None; expected a list"),
        (byte_level_metadata(merges=["x yz"]), "merges: "),
        (byte_level_metadata(token_type=[1, 2]), "token_type: has 2 entries; expected 258"),
        (byte_level_metadata(tokens=["a", "a"], token_type=[1, 1]), "tokens: holds a token twice"),
        (byte_level_metadata(add_bos_token=3), "add_bos_token is 3; expected a bool"),
        (sentencepiece_metadata(scores=None), "scores is None; expected a list"),
        (sentencepiece_metadata(scores=[1.0]), "scores: has 1 entries"),
    ],
)
def test_what_is_wrong_is_named(fields, message):
    with pytest.raises(CheckpointError, match=rf"tokenizer\.ggml\.{message}"):
        load_tokenizer(None, fields)


def check_golden(tokenizer, name):
    cases = json.loads((GOLDEN / name).read_text())["cases"]
    for case in cases:
        if "messages" in case:
            ids = tokenizer.encode(tokenizer.apply_chat_template(case["messages"]), add_special_tokens=False)
        else:
            ids = tokenizer.encode(case["prompt"])
        assert ids == case["prompt_ids"]
        detokenizer = make_detokenizer(tokenizer, ids)
        text = "".join([*map(detokenizer.push, case["output_ids"]), detokenizer.finish()])
        assert text == case["text"] == tokenizer.decode([*ids, *case["output_ids"]])[len(tokenizer.decode(ids)) :]
    return cases


@pytest.mark.models
def test_smollm2(demo_gguf):
    from xlaserve.models.gguf_file import GGUFFile

    tokenizer = load_tokenizer(None, GGUFFile(demo_gguf).gguf_metadata)
    cases = check_golden(tokenizer, "smollm2-135m.json")
    assert any("messages" in case for case in cases)
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (49152, {2})


@pytest.mark.models
def test_gemma3(gemma_gguf):
    from xlaserve.models.gguf_file import GGUFFile

    metadata = GGUFFile(gemma_gguf).gguf_metadata
    start = time.perf_counter()
    tokenizer = load_tokenizer(None, metadata)
    assert time.perf_counter() - start < 10  # about 2 s alone on a core
    check_golden(tokenizer, "gemma3-270m.json")
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.bos_id) == (262144, {1}, 2)
