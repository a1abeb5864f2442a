"""Two models behind one address: requests go by their name."""

import json
import threading

import pytest

from tests.server.batching import finished, jsonl, line, results, start
from tests.server.harness import JSON, served, wait_until
from tests.server.toy_service import make_toy_service
from xlaserve.engine.served_models import ServedModels, Slot
from xlaserve.server.admin_access import AdminAccess


@pytest.fixture
def two(make_live):
    """A server with the models `toy`, which says hello, and `other`, which says WORLD."""
    server = make_live(b"HELLO")
    other, runner = make_toy_service(b"WORLD", name="other", max_model_len=48)
    server.other = other
    server.state.set_ready(served(server.service, other))
    yield server
    runner.released.set()
    assert other.shutdown(timeout=10)
    assert runner.violations == []


def text(answer) -> str:
    return answer.json["choices"][0]["text"]


def test_requests_go_by_their_model(two):
    assert text(two.complete(model="toy")) == "HELLO"
    answer = two.complete(model="other")
    assert (text(answer), answer.json["model"]) == ("WORLD", "other")
    chat = two.chat(model="other").json
    assert (chat["choices"][0]["message"]["content"], chat["model"]) == ("WORLD", "other")


def test_a_stream_too(two):
    lines = two.complete(model="other", stream=True).body.decode().split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {event["model"] for event in events} == {"other"}
    assert "".join(event["choices"][0]["text"] for event in events) == "WORLD"


def test_each_has_limits_of_its_own(two):
    assert two.complete(model="toy", prompt="a" * 60).status == 200
    refused = two.complete(model="other", prompt="a" * 60)
    assert refused.status == 400
    assert "48 tokens" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/v1/responses"]
)
def test_a_model_that_is_not_there_is_told_which_are(two, path):
    answer = two.post(path, {"model": "third"})
    assert answer.status == 404
    assert answer.json["error"]["code"] == "model_not_found"
    assert answer.json["error"]["param"] == "model"
    assert "'toy', 'other'" in answer.json["error"]["message"]


@pytest.mark.parametrize("model", [3, ["toy"], {}])
def test_what_is_no_name_is_refused(two, model):
    answer = two.complete(model=model)
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")


def test_where_none_is_named_the_first_is_meant(two):
    assert two.post("/tokenize", {"prompt": "hi"}).json["max_model_len"] == 96
    assert two.post("/tokenize", {"prompt": "hi", "model": "other"}).json["max_model_len"] == 48
    assert two.post("/detokenize", {"tokens": [104, 105], "model": "other"}).status == 200


def test_all_are_listed(two):
    assert [card["id"] for card in two.get("/v1/models").json["data"]] == ["toy", "other"]
    assert two.get("/v1/models/other").json["max_model_len"] == 48
    assert two.get("/v1/models/third").status == 404


def test_health_is_that_of_all(two):
    assert two.get("/health").status == 200
    assert two.get("/ready").json["engines"] == {"toy": "ready", "other": "ready"}
    two.other.shutdown(timeout=10)
    assert two.get("/health").status == 503
    assert two.get("/ready").status == 503
    assert two.get("/ready").json["engines"]["other"] != "ready"
    assert two.complete(model="other").status == 503
    assert text(two.complete(model="toy")) == "HELLO"  # which is none the worse for it


def test_metrics_tell_of_both(two):
    two.complete(model="other")
    metrics = two.get("/metrics").body.decode()
    assert 'xlaserve:generation_tokens_total{model_name="other"} 6.0' in metrics  # the end is one
    assert 'xlaserve:generation_tokens_total{model_name="toy"} 0.0' in metrics


def test_lines_of_a_batch_go_by_their_model(keep):
    server = keep()
    other, _ = make_toy_service(b"WORLD", name="other")
    server.state.set_ready(served(server.service, other))
    lines = [line("a", model="toy"), line("b", model="other"), line("c", model="third")]
    batch = finished(server, start(server, jsonl(*lines)))
    texts = {name: result["response"]["body"]["choices"][0]["text"] for name, result in results(server, batch).items()}
    assert texts == {"a": "hello", "b": "WORLD"}
    (failed,) = results(server, batch, "error").values()
    assert failed["response"]["status_code"] == 404
    assert other.shutdown(timeout=10)


@pytest.fixture
def on_demand(make_live):
    """A server with the model `toy`, which stays, and `other` on demand; `other` loads when its gate is open."""
    server = make_live(b"HELLO")
    made, gate = [], threading.Event()

    def start(make_room):
        make_room(10)
        assert gate.wait(20)
        made.append(make_toy_service(b"WORLD", name="other")[0])
        return made[-1]

    slots = [Slot("toy", service=server.service), Slot("other", start)]
    server.state.set_ready(ServedModels(slots, memory=10, wait=0.2))
    server.gate = gate
    yield server
    gate.set()
    assert all(service.shutdown(timeout=10) for service in made)


def test_a_model_on_demand_is_loaded_by_its_first_request(on_demand):
    assert on_demand.get("/ready").json["engines"] == {"toy": "ready", "other": "not loaded"}
    assert on_demand.get("/v1/models/other").json["max_model_len"] is None
    busy = on_demand.complete(model="other")
    assert (busy.status, "still loading" in busy.json["error"]["message"]) == (503, True)
    assert int(busy.headers["Retry-After"]) >= 1
    assert on_demand.get("/ready").json["engines"]["other"] == "loading"
    assert on_demand.get("/health").status == 200
    assert text(on_demand.complete(model="toy")) == "HELLO"
    on_demand.gate.set()
    assert wait_until(lambda: on_demand.complete(model="other").status == 200)
    assert on_demand.get("/v1/models/other").json["max_model_len"] == 96
    assert 'xlaserve:model_loads_total{model_name="other"} 1.0' in on_demand.get("/metrics").body.decode()
    assert on_demand.state.models().slot("other").num_users == 0


def test_a_stream_keeps_its_model(on_demand):
    on_demand.gate.set()
    slot = on_demand.state.models().slot("other")
    assert wait_until(lambda: on_demand.complete(model="other").status == 200)
    with on_demand.open("/v1/completions", {"model": "other", "prompt": "hi", "stream": True}) as connection:
        response = connection.getresponse()
        assert slot.num_users == 1
        response.read()
    assert wait_until(lambda: slot.num_users == 0)


def test_orders_load_and_unload(make_live):
    server = make_live(b"HELLO", admin_access=AdminAccess("sk-admin"))
    made = []

    def start(make_room):
        make_room(10)
        made.append(make_toy_service(b"WORLD", name="other")[0])
        return made[-1]

    server.state.set_ready(ServedModels([Slot("toy", service=server.service), Slot("other", start)], memory=10))

    def order(path: str, key: str = "sk-admin"):
        return server.post(f"/admin/models/{path}", {}, JSON | {"Authorization": f"Bearer {key}"})

    assert order("other/load", "wrong").status == 401
    assert (order("other/load").json["state"], len(made)) == ("ready", 1)
    assert (order("other/load").json["state"], len(made)) == ("ready", 1)
    assert text(server.complete(model="other")) == "WORLD"
    assert order("other/unload").json["state"] == "not loaded"
    assert order("other/unload").json["state"] == "not loaded"
    assert made[0].state != "ready"
    assert text(server.complete(model="other")) == "WORLD"
    assert len(made) == 2
    assert order("toy/load").json["state"] == "ready"
    stays = order("toy/unload")
    assert (stays.status, "not on demand" in stays.error["message"]) == (409, True)
    assert order("third/unload").status == order("third/load").status == 404
    assert made[1].shutdown(timeout=10)
