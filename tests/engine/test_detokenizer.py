import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from tests import toys
from xlaserve.engine.detokenizer import make_detokenizer
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.engine.vocabulary import Vocabulary

BAD = "\ufffd"


def opaque_tokenizer(decoder=None) -> Tokenizer:
    words = ["▁a", "b", "▁", "▁▁c", "##d", "é", "▁e\u0301", "f."]
    backend = Backend(models.WordLevel({word: 2 * n for n, word in enumerate(words)}, unk_token="b"))
    backend.decoder = decoder
    return Tokenizer(Vocabulary(backend))


def with_added_tokens() -> Tokenizer:
    """One of them is read as a byte by the library's own decoder: é stands for E9."""
    vocabulary = toys.byte_level_vocabulary()
    vocabulary.backend.add_tokens([AddedToken(text, normalized=False) for text in ("x y", "日本", "é")])
    return toys.as_tokenizer(vocabulary)


EXACT = {
    "bytes": toys.byte_tokenizer(),
    "byte-level": toys.byte_level_tokenizer(),
    "added tokens": with_added_tokens(),
    "sentencepiece": toys.sentencepiece_tokenizer(),
    "sentencepiece without prefix": toys.sentencepiece_tokenizer(space_prefix=False),
}
FAITHFUL = {name: tokenizer for name, tokenizer in EXACT.items() if name != "added tokens"}
OPAQUE = {
    "no decoder": opaque_tokenizer(),
    "metaspace": opaque_tokenizer(decoders.Metaspace()),
    "wordpiece": toys.wordpiece_tokenizer(cleanup=False),
    "wordpiece with clean-up": toys.wordpiece_tokenizer(cleanup=True),
    "wordpiece that joins all": opaque_tokenizer(decoders.WordPiece(prefix="", cleanup=False)),
    "words in a sequence": opaque_tokenizer(decoders.Sequence([])),
}
LETTERS = [*b"abc \xc3\xa9\xf0\x9f\x8c\xb6\xe6\x97\xa5\xef\xbf\xbd\xff\x80\xe0\xc0"]


def pieces(tokenizer, prompt, output, **options):
    detokenizer = make_detokenizer(tokenizer, prompt, **options)
    return [*map(detokenizer.push, output), detokenizer.finish()]


def ids_of(tokenizer: Tokenizer):
    """Ids of every kind: bytes that make, break or begin characters, words, special ones and ones it lacks."""
    offset = 3 if tokenizer.spelling.kind == "byte_fallback" else 0
    byte_ids = st.sampled_from([offset + byte for byte in LETTERS])
    anything = st.integers(-2, tokenizer.vocab_size + 5)
    return st.lists(byte_ids | anything, max_size=24)


@pytest.mark.parametrize("tokenizer", (EXACT | OPAQUE).values(), ids=(EXACT | OPAQUE).keys())
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_decoded_whole(tokenizer, data):
    output = data.draw(ids_of(tokenizer))
    for skip in (True, False):
        whole = tokenizer.decode(output, skip_special_tokens=skip)
        assert "".join(pieces(tokenizer, [], output, skip_special_tokens=skip)) == whole


@pytest.mark.parametrize("tokenizer", (EXACT | OPAQUE).values(), ids=(EXACT | OPAQUE).keys())
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_output_is_the_whole_without_the_prompt(tokenizer, data):
    ids = data.draw(ids_of(tokenizer))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    whole, before, text = tokenizer.decode(ids), tokenizer.decode(prompt), "".join(pieces(tokenizer, prompt, output))
    inside_character = before.endswith(BAD) or not whole.startswith(before)
    if tokenizer.spelling.kind == "byte_fallback" and prompt:
        last = [tokenizer.token(i) for i in prompt if tokenizer.gives_text(i)][-1:]
        inside_character |= any(tokenizer.spelling.byte_of(token) is not None for token in last)
    if not inside_character:
        assert text == whole[len(before) :]
    assert whole.endswith(text)
    assert len(text) <= len(whole)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("skip", [True, False])
def test_no_space_between_added_tokens_where_none_is_wanted(skip, data):
    tokenizer = OPAQUE["wordpiece"]
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size) | st.sampled_from(sorted(tokenizer.added_ids))))
    merged: list[str] = []
    was_added = False
    for token_id in filter(lambda i: tokenizer.gives_text(i, skip_special_tokens=skip), ids):
        is_added = token_id in tokenizer.added_ids
        if is_added and was_added:
            merged[-1] += tokenizer.token(token_id) or ""
        else:
            merged.append(tokenizer.token(token_id) or "")
        was_added = is_added
    options = {"skip_special_tokens": skip, "spaces_between_special_tokens": False}
    whole = decoders.WordPiece(cleanup=False).decode(merged)
    assert "".join(pieces(tokenizer, [], ids, **options)) == whole
    cut = data.draw(st.integers(0, len(ids)))
    before, after = (
        pieces(tokenizer, prompt, output, **options) for prompt, output in (([], ids[:cut]), (ids[:cut], ids[cut:]))
    )
    assert "".join([*before, *after]) == whole


@pytest.mark.parametrize("tokenizer", FAITHFUL.values(), ids=FAITHFUL.keys())
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab é日🌶\n.é"), max_size=12), data=st.data())
def test_no_character_is_split(tokenizer, text, data):
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(tokenizer, [], ids)
    assert "".join(parts) == text
    assert not any(BAD in part for part in parts)
    cut = data.draw(st.integers(0, len(ids)))
    assert BAD not in "".join(pieces(tokenizer, ids[:cut], ids[cut:]))


@pytest.mark.parametrize("tokenizer", EXACT.values(), ids=EXACT.keys())
def test_report_2_no_prompt_text_when_the_prompt_ends_inside_a_character(tokenizer):
    ids = tokenizer.encode("Hello world 🌶", add_special_tokens=False)
    rest = tokenizer.encode(" the", add_special_tokens=False)
    end = tokenizer.decode([*ids, *rest]).removeprefix("Hello world 🌶")
    for cut in (1, 2, 3):
        completed = pieces(tokenizer, ids[:-cut], [*ids[-cut:], *rest])
        assert "".join(completed) == "🌶" + end
        broken = "".join(pieces(tokenizer, ids[:-cut], rest))
        assert broken == end
        assert pieces(tokenizer, ids[:-cut], []) == [""]


def test_report_1_broken_bytes_do_not_harm_the_text_around_them():
    tokenizer = toys.byte_level_tokenizer()
    parts = pieces(tokenizer, [], [*b"a \xe2\x80", *b"b\xff\xc3", *"é".encode(), *b"c\xf0\x9f"])
    assert "".join(parts) == f"a {BAD}b{BAD}{BAD}éc{BAD}"
    tokenizer = toys.sentencepiece_tokenizer()
    quote, letter = 3 + ord('"'), tokenizer.encode("x", add_special_tokens=False)[-1]
    assert "".join(pieces(tokenizer, [], [3 + 0xE2, 3 + 0x80, quote, letter])) == BAD * 3 + "x"


def test_report_4_sentencepiece_spaces_are_kept():
    tokenizer = toys.sentencepiece_tokenizer()
    prompt = tokenizer.encode("The Engine.")
    output = tokenizer.encode("It is A. B  C\n D", add_special_tokens=False)
    assert tokenizer.token(output[0]) == "▁"
    assert "".join(pieces(tokenizer, prompt, output)) == " It is A. B  C\n D"
    assert "".join(pieces(tokenizer, [tokenizer.bos_id], output)) == "It is A. B  C\n D"


def test_text_comes_as_soon_as_it_is_certain():
    tokenizer = toys.byte_level_tokenizer()
    assert pieces(tokenizer, [], [*"aé🌶".encode()]) == ["a", "", "é", "", "", "", "🌶", ""]
    tokenizer = toys.sentencepiece_tokenizer()
    newline, letter = 3 + ord("\n"), tokenizer.encode("x", add_special_tokens=False)[-1]
    detokenizer = make_detokenizer(tokenizer, [letter])
    assert (detokenizer.push(newline), detokenizer.held_text()) == ("", "\n")
    assert (detokenizer.push(3 + 0xC3), detokenizer.held_text()) == ("", "")
    assert (detokenizer.push(3 + 0xA9), detokenizer.held_text()) == ("", "\né")
    assert detokenizer.push(letter) == "\néx"


def test_a_token_costs_the_same_however_long_the_text_is():
    tokenizer = toys.byte_level_tokenizer()
    detokenizer = make_detokenizer(tokenizer, [97] * 1_000_000)
    start = time.perf_counter()
    for _ in range(20_000):
        detokenizer.push(97)
    assert time.perf_counter() - start < 2
