import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import toys
from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.engine.output_processor import OutputProcessor, TextDelta
from xlaserve.sampling_params import SamplingParams

BYTES = toys.byte_tokenizer()
WORDS = toys.byte_level_tokenizer()
PIECES = toys.sentencepiece_tokenizer()
TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTES, WORDS, PIECES], ids=["bytes", "byte-level", "sentencepiece"])
EOS = next(iter(WORDS.eos_ids))


def processor(tokenizer=BYTES, prompt=(), stop_ids=(), **params) -> OutputProcessor:
    return OutputProcessor(tokenizer, list(prompt), SamplingParams(**params), frozenset(stop_ids))


def output(token_ids, finish_reason=None, **fields) -> EngineOutput:
    return EngineOutput("r", tuple(token_ids), finish_reason=finish_reason, **fields)


def run(subject: OutputProcessor, token_ids, finish_reason="length", size=1) -> list[TextDelta]:
    """Pushes `size` tokens at a time, the last with the finish reason, until the processor says it is finished."""
    token_ids = list(token_ids)
    groups = [token_ids[at : at + size] for at in range(0, len(token_ids), size)] or [[]]
    deltas = []
    for n, group in enumerate(groups):
        deltas.append(subject.push(output(group, finish_reason if n == len(groups) - 1 else None)))
        if subject.finished:
            break
    return deltas


def text_of(deltas) -> str:
    return "".join(delta.text for delta in deltas)


def encode(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids[1:] if tokenizer is PIECES and not text.startswith(" ") and tokenizer.token(ids[0]) == "▁" else ids


@TOKENIZERS
@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("A B C N O P Q R", "O P Q", "A B C N "),
        ("the quick brown fox", "wn fo", "the quick bro"),
        ("hi\nUser:", "\nUser:", "hi"),
        ("a\nb", "\n", "a"),
        ("one é日🌶 two", "日🌶", "one é"),
        ("stop at once", "stop", ""),
        ("aaab", "aab", "a"),
        ("the end", "d", "the en"),
    ],
)
def test_report_5_text_ends_before_the_stop_string(tokenizer, size, text, stop, expected):
    deltas = run(processor(tokenizer, stop=stop), encode(tokenizer, text), size=size)
    assert text_of(deltas) == expected
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert all(delta.finish_reason is None for delta in deltas[:-1])


@TOKENIZERS
@pytest.mark.parametrize("finish_reason", ["length", "abort", "error"])
@pytest.mark.parametrize("text", ["hi\nUser", "hi\nUser x", "hi\n", "hi"])
def test_report_6_what_is_held_back_is_not_lost(tokenizer, finish_reason, text):
    deltas = run(processor(tokenizer, stop="\nUser:"), encode(tokenizer, text), finish_reason)
    assert text_of(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (finish_reason, None)


def test_report_6_nothing_of_a_stop_string_is_shown_early():
    deltas = run(processor(stop=("\nUser:", "\nUse it", "é🌶")), "hi\nUse me, é!\nUser:".encode())
    texts = [delta.text for delta in deltas]
    assert texts[:3] == ["h", "i", ""]
    assert "\nUse m" in texts  # comes at once when it is known to be none
    assert "é!" in texts
    assert text_of(deltas) == "hi\nUse me, é!"


def test_the_stop_string_that_begins_first_wins():
    assert run(processor(stop=("d", "bcd")), b"abcde", size=5) == [TextDelta("a", tuple(b"abcd"), None, "stop", "bcd")]
    # one token at a time "c" is complete first
    assert run(processor(stop=("bcd", "c")), b"abcde")[-1].stop_reason == "c"
    assert run(processor(stop=("abc", "ab")), b"xabc")[-1].stop_reason == "ab"


def test_token_ids_end_with_the_token_that_completes_the_stop_string():
    deltas = run(processor(WORDS, stop="lo w"), WORDS.encode("Hello world!"), size=100)
    assert [WORDS.token_text(i) for i in deltas[-1].token_ids] == ["He", "ll", "o", " world"]
    assert deltas[-1].text == "Hel"


def test_a_newline_of_a_byte_token_stops_at_its_own_token():
    """Its text is held back, as more bytes may follow; but the stop string does not wait for them."""
    newline = PIECES.encode("\n", add_special_tokens=False)[-1]
    assert PIECES.token(newline) == "<0x0A>"
    subject = processor(PIECES, stop="\n")
    deltas = run(subject, [*encode(PIECES, "ab"), newline, newline])
    assert (text_of(deltas), deltas[-1].token_ids, deltas[-1].stop_reason) == ("ab", (newline,), "\n")


@pytest.mark.parametrize("size", [1, 3])
def test_report_10_eos_is_counted_but_not_shown(size):
    deltas = run(processor(WORDS, stop_ids=[EOS]), [*b"hi", EOS], "stop", size)
    assert text_of(deltas) == "hi"
    assert [i for delta in deltas for i in delta.token_ids] == [*b"hi", EOS]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


def test_an_ignored_eos_is_not_shown_either():
    assert text_of(run(processor(WORDS, ignore_eos=True), [*b"hi", EOS, *b" you"])) == "hi you"


def test_report_5_a_stop_token_that_is_a_word_is_not_shown():
    subject = processor(WORDS, stop_token_ids=[ord("!")], stop_ids=[EOS, ord("!")])
    subject.push(output(b"hi"))
    delta = subject.push(output(b"!", "stop", stop_reason=ord("!")))
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("", (ord("!"),), ord("!"))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(("stop_id", "shown"), [(ord("!"), "!"), (EOS, "</s>")], ids=["word", "special"])
def test_report_5_nothing_before_a_stop_token_is_lost(stop_id, shown, skip, include):
    options = {"skip_special_tokens": skip, "include_stop_str_in_output": include}
    deltas = run(processor(WORDS, stop_ids=[stop_id], **options), [*b"hi", stop_id], "stop")
    assert text_of(deltas) == "hi" + (shown if include and not (skip and stop_id == EOS) else "")
    assert [i for delta in deltas for i in delta.token_ids] == [*b"hi", stop_id]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("text", ["say wn fox", "say wn f"])
def test_a_stop_string_may_be_part_of_the_text(size, text):
    deltas = run(processor(WORDS, stop=("n fo", "n foz"), include_stop_str_in_output=True), text.encode(), size=size)
    found = "n fo" in text
    assert text_of(deltas) == ("say wn fo" if found else text)
    assert deltas[-1].stop_reason == ("n fo" if found else None)


def test_a_special_token_may_be_shown():
    begin = WORDS.bos_id
    ids = [begin, *b"hi", begin, *b"!"]
    assert text_of(run(processor(WORDS), ids)) == "hi!"
    assert text_of(run(processor(WORDS, skip_special_tokens=False), ids)) == "<s>hi<s>!"
    assert text_of(run(processor(WORDS, skip_special_tokens=False, stop="i<s>"), ids)) == "<s>h"


def test_report_5_a_stop_string_wins_over_an_eos_after_it():
    delta = processor(WORDS, stop="hi", stop_ids=[EOS]).push(output([*b"o hi", EOS], "stop"))
    assert delta == TextDelta("o ", tuple(b"o hi"), None, "stop", "hi")


def test_an_incomplete_character_is_flushed_at_the_end():
    deltas = run(processor(), b"a\xf0\x9f")
    assert [delta.text for delta in deltas] == ["a", "", "\ufffd"]
    deltas = run(processor(WORDS, stop_ids=[EOS]), [*b"a\xf0\x9f", EOS], "stop")
    assert text_of(deltas) == "a\ufffd"


def test_report_2_no_text_of_the_prompt():
    prompt = "Hello world 🌶".encode()
    assert text_of(run(processor(prompt=prompt[:-1]), prompt[-1:] + b" is hot")) == "🌶 is hot"
    assert text_of(run(processor(prompt=b"User:", stop="User: a"), b" a")) == " a"


def test_nothing_comes_after_the_end():
    subject = processor(stop="b")
    assert subject.push(output(b"ab")).finish_reason == "stop"
    assert subject.push(output(b"cd", "length")) == TextDelta()
    assert subject.finished


def test_an_error_is_passed_on():
    delta = processor().push(output(b"", "error", error="the logits were not finite"))
    assert (delta.finish_reason, delta.error) == ("error", "the logits were not finite")


def test_logprobs_show_each_token_as_it_is_in_the_text():
    found = [TokenLogprobs(-0.5, ((0xC3, -0.5), (999, -2.0))), TokenLogprobs(-1.0, ()), TokenLogprobs(-2.0, ())]
    subject = processor(WORDS, logprobs=2, stop="!", stop_ids=[EOS])
    delta = subject.push(output([0xC3, *b"!", EOS], "stop", logprobs=tuple(found)))
    assert len(delta.logprobs or ()) == 2  # none for what comes after the stop string
    first, second = delta.logprobs or ()
    assert (first.token, first.bytes, first.logprob) == ("\ufffd", b"\xc3", -0.5)
    assert first.top == ((0xC3, "\ufffd", b"\xc3", -0.5), (999, "", b"", -2.0))
    assert (second.token, second.top) == ("!", ())
    subject = processor(PIECES, logprobs=0)
    the = encode(PIECES, "a the")
    (entry,) = subject.push(output(the[-1:], logprobs=(TokenLogprobs(-1.0, ()),))).logprobs or ()
    assert (entry.token, entry.bytes) == (" the", b" the")
    assert processor().push(output(b"a")).logprobs is None


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abé\n", max_size=20),
    stops=st.lists(st.text("abé\n", min_size=1, max_size=4), max_size=4),
    size=st.integers(1, 5),
)
def test_stop_strings_are_found_wherever_the_pieces_are_cut(text, stops, size):
    ids = text.encode()
    deltas = run(processor(stop=stops), ids, size=size)
    ends = (n for n in range(1, len(text) + 1) if any(stop in text[:n] for stop in stops))
    end = next(ends, None)
    if end is None:
        assert (text_of(deltas), deltas[-1].finish_reason) == (text, "length")
        return
    at, stop = min((text[:end].find(stop), stop) for stop in stops if stop in text[:end])
    assert text_of(deltas) == text[:at]
    assert text[at:].startswith(deltas[-1].stop_reason)
    assert len(deltas[-1].stop_reason) <= len(stop)
    num_tokens = len(text[:end].encode())
    assert list(itertools.chain.from_iterable(delta.token_ids for delta in deltas)) == list(ids[:num_tokens])
