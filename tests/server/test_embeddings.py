"""Embeddings, scores and ranks over HTTP, against transformers' hidden states."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from tests import tiny_models
from tests.server.batching import EMBEDDINGS, finished, jsonl, line, results, start
from tests.server.fields.said import Said
from tests.server.tiny_server import BOS, tiny_server
from tests.toy_runner import HIDDEN_SIZE
from xlaserve.engine.embeddings import normalised, pooling_of
from xlaserve.errors import CheckpointError
from xlaserve.scheduling_params import SchedulingParams
from xlaserve.server.pooling.requests import parse_embedding

SIZE = tiny_models.hidden("llama")[1].shape[-1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, cache_dir):
    with tiny_server(tmp_path_factory.mktemp("model") / "tiny", cache_dir) as server:
        yield server


def ask(server, path: str, **fields) -> Said:
    answer = server.post(path, {"model": "toy"} | fields)
    assert answer.status == 200, answer.body
    return Said(answer)


def embed(server, texts, **fields) -> np.ndarray:
    said = ask(server, "/v1/embeddings", input=texts, **fields)
    assert [each["index"] for each in said.json["data"]] == list(range(len(said.json["data"])))
    return np.array([each["embedding"] for each in said.json["data"]])


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("length", [1, 8, 15, 16, 17, 40])
def test_an_embedding_is_the_last_hidden_state(tiny, length):
    prompt, hidden = tiny_models.hidden("llama")
    (found,) = embed(tiny, prompt[:length])
    np.testing.assert_allclose(found, of_length_one(hidden[length - 1]), atol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_the_config_says_how_it_is_pooled(tmp_path, cache_dir, pooling):
    prompt, hidden = tiny_models.hidden("llama")
    wanted = {"last": hidden[:-1][-1:], "mean": hidden[:-1], "cls": hidden[:1]}[pooling].mean(axis=0)
    with tiny_server(tmp_path / "tiny", cache_dir, pooling=pooling) as server:
        np.testing.assert_allclose(embed(server, [prompt[:-1]] * 2), [of_length_one(wanted)] * 2, atol=1e-5)


def test_many_texts_and_what_they_cost(tiny):
    texts = ["a", "some longer text than that", "x" * 60, "a"]
    said = ask(tiny, "/v1/embeddings", input=texts)
    assert said.json["object"] == "list"
    assert {each["object"] for each in said.json["data"]} == {"embedding"}
    assert said.usage == {"prompt_tokens": sum(1 + len(text) for text in texts)} | {
        "total_tokens": sum(1 + len(text) for text in texts)
    }
    alone = np.concatenate([embed(tiny, text) for text in texts])
    np.testing.assert_allclose(embed(tiny, texts), alone, atol=1e-5)


def test_base64_is_the_same_in_float32(tiny):
    said = ask(tiny, "/v1/embeddings", input=["hi", "there"], encoding_format="base64")
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in said.json["data"]]
    np.testing.assert_allclose(found, embed(tiny, ["hi", "there"]), atol=1e-6)


@pytest.mark.parametrize("size", [1, 5, SIZE])
def test_fewer_dimensions_are_of_length_one_too(tiny, size):
    np.testing.assert_allclose(
        embed(tiny, "hello", dimensions=size), of_length_one(embed(tiny, "hello")[:, :size]), atol=1e-6
    )


def test_the_client_of_openai_reads_it(tiny):
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
        by_default = client.embeddings.create(model="toy", input=["hi"])  # it asks for base64, and decodes that
        as_floats = client.embeddings.create(model="toy", input=["hi"], encoding_format="float")
    np.testing.assert_allclose(by_default.data[0].embedding, as_floats.data[0].embedding, atol=1e-6)
    assert by_default.usage.prompt_tokens == 3


def test_scores_are_cosines(tiny):
    first, second = ["hello", "night"], ["hello there", "day"]
    vectors = embed(tiny, first + second)
    pairs = ask(tiny, "/v1/score", text_1=first, text_2=second)
    assert [each["score"] for each in pairs.json["data"]] == pytest.approx(
        (vectors[:2] * vectors[2:]).sum(-1), abs=1e-5
    )
    one = ask(tiny, "/v1/score", text_1=first[0], text_2=[*second, first[0]])
    expected = [*(vectors[0] @ vectors[2:].T), 1.0]
    assert [each["score"] for each in one.json["data"]] == pytest.approx(expected, abs=1e-5)
    assert one.usage["prompt_tokens"] == sum(1 + len(text) for text in ("hello", *second, "hello"))


def test_ranks_go_from_the_best(tiny):
    documents = ["night", {"text": "hello"}, "hello there", "hello"]
    said = ask(tiny, "/v1/rerank", query="hello", documents=documents)
    scores = ask(tiny, "/v1/score", text_1="hello", text_2=["night", "hello", "hello there", "hello"])
    by_index = {each["index"]: each["relevance_score"] for each in said.json["results"]}
    assert [by_index[index] for index in range(4)] == pytest.approx([each["score"] for each in scores.json["data"]])
    assert [each["index"] for each in said.json["results"]][:2] == [1, 3]  # equals in their own order
    assert said.json["results"][0]["document"] == {"text": "hello"}
    few = ask(tiny, "/v1/rerank", query="hello", documents=documents, top_n=2, return_documents=False)
    assert [set(each) for each in few.json["results"]] == [{"index", "relevance_score"}] * 2


def test_a_text_as_long_as_the_context(tiny):
    assert ask(tiny, "/v1/embeddings", input=[65] * 256).usage["prompt_tokens"] == 256


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        pytest.param("embeddings", {"input": [65] * 257}, "input", id="too long"),
        pytest.param("embeddings", {"input": ["fine", "x" * 256]}, "input", id="one too long"),
        pytest.param("embeddings", {"input": "x" * 90_000}, "input", id="far too long"),
        pytest.param("embeddings", {"input": [999]}, "input", id="no such token"),
        pytest.param("embeddings", {"input": [""], "add_special_tokens": False}, "input", id="empty"),
        pytest.param("embeddings", {"input": ["a"] * 2049}, "input", id="too many"),
        pytest.param("embeddings", {"input": "a", "dimensions": SIZE + 1}, "dimensions", id="dimensions"),
        pytest.param("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", id="pairs"),
        pytest.param("score", {"text_1": ["a", "b"], "text_2": "a"}, "text_1", id="two to one"),
        pytest.param("score", {"text_1": "x" * 256, "text_2": "a"}, "text_1", id="text_1"),
        pytest.param("score", {"text_1": "a", "text_2": "x" * 256}, "text_2", id="text_2"),
        pytest.param("rerank", {"query": "x" * 256, "documents": ["a"]}, "query", id="query"),
        pytest.param("rerank", {"query": "a", "documents": ["x" * 256]}, "documents", id="documents"),
        pytest.param("rerank", {"query": "a", "documents": []}, "documents", id="no documents"),
    ],
)
def test_what_cannot_be_served_is_named(tiny, path, fields, param):
    answer = tiny.post(f"/v1/{path}", {"model": "toy"} | fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_what_is_wrong_with_a_document_is_told_once(tiny):
    for wrong, told in (({"text": None}, "documents[1].text"), ({"title": "a", "text": "b"}, "documents[1].title")):
        error = tiny.post("/v1/rerank", {"model": "toy", "query": "a", "documents": ["a", wrong]}).error
        assert (error["param"], error["message"].count("documents")) == ("documents", 1), error
        assert told in error["message"]


def test_many_texts_leave_the_queue_to_others(keep):
    """More than the queue has places for: a window of them is in the engine at a time."""
    server = keep(toy={"max_waiting": 20})
    texts = [[n % 100, n // 100] for n in range(500)]
    with ThreadPoolExecutor() as pool:
        many = pool.submit(embed, server, texts)
        refused = 0
        while not many.done():
            refused += server.post("/v1/embeddings", {"model": "toy", "input": "a"}).status != 200
    assert refused == 0
    for index in (0, 8, 16, 17, 250, 499):
        np.testing.assert_allclose(many.result()[index], embed(server, texts[index])[0], atol=1e-6)


def test_the_time_of_many_texts_is_that_of_all(keep):
    server = keep()
    answer = server.post("/v1/embeddings", {"model": "toy", "input": ["a"] * 2048, "timeout": 0.05})
    assert answer.status == 504


def test_scheduling_is_that_of_text(tiny):
    """For scores and ranks too, whose requests have the same base."""
    fields = {"priority": 3, "timeout": 2.5, "cache_salt": "mine"}
    asked = parse_embedding({"model": "toy", "input": "a"} | fields)
    assert asked.scheduling_params("me") == SchedulingParams(tenant="me", **fields)
    late = tiny.post("/v1/embeddings", {"model": "toy", "input": "a", "timeout": 1e-9})
    assert (late.status, late.error["type"]) == (504, "server_error")


def test_what_has_no_direction_stays_without():
    np.testing.assert_array_equal(normalised(np.zeros((1, 3), np.float32)), np.zeros((1, 3)))


def test_a_batch_of_embeddings(keep):
    server = keep()
    lines = [line("good", EMBEDDINGS, input=["a", "b"]), line("bad", EMBEDDINGS, input=[])]
    batch = finished(server, start(server, jsonl(*lines), endpoint=EMBEDDINGS))
    (good,), (bad,) = (results(server, batch, kind).values() for kind in ("output", "error"))
    assert [len(each["embedding"]) for each in good["response"]["body"]["data"]] == [HIDDEN_SIZE] * 2
    assert bad["response"]["body"]["error"]["param"] == "input"


def test_special_tokens_are_added_unless_not_wanted(tiny):
    np.testing.assert_allclose(embed(tiny, "hi"), embed(tiny, [BOS, *b"hi"], add_special_tokens=False), atol=1e-6)
    np.testing.assert_allclose(embed(tiny, "hi", add_special_tokens=False), embed(tiny, [*b"hi"]), atol=1e-6)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "word_embedding_dimension": 5}, "cls"),
        ({"pooling_mode_cls_token": False}, None),
    ],
    ids=str,
)
def test_a_checkpoint_says_how_it_is_pooled(tmp_path, modes, expected):
    assert pooling_of(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert pooling_of(tmp_path) == expected


@pytest.mark.parametrize("modes", [["max_tokens"], ["cls_token", "mean_tokens"], ["weightedmean_tokens"]], ids=str)
def test_a_way_of_pooling_that_is_not_served_is_named(tmp_path, modes):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True for mode in modes}))
    with pytest.raises(CheckpointError, match=rf"1_Pooling/config.json: pools by pooling_mode_{modes[0]}"):
        pooling_of(tmp_path)
