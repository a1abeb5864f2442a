"""/admin: who is let in, which files may be named, and what a swap answers. The toy's own files: tests/toy_store.py."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import JSON, Answer, LiveServer, wait_until
from tests.toy_store import ToyStore
from xlaserve.config import ServerSection
from xlaserve.errors import ConfigError, InvalidRequest
from xlaserve.server.admin_access import AdminAccess, read_admin_key

KEY = "sk-admin-do-not-show"
ALICE = {"Authorization": "Bearer sk-alice"}
SWAP = "/admin/models/toy/weights"


@pytest.fixture
def folder(tmp_path) -> Path:
    """With weights that are fine, such that are not, and such that may not be read beside it."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    for path, text in ((allowed / "fine", ""), (allowed / "bad", "header too short"), (tmp_path / "beside", "")):
        path.write_text(text)
    return allowed


@pytest.fixture
def administered(make_live, folder) -> LiveServer:
    return make_live(make_store=ToyStore, admin_access=AdminAccess(KEY, [folder]), api_keys={"alice": "sk-alice"})


def order(server: LiveServer, path: str, body: Any, key: str | None = KEY) -> Answer:
    return server.post(path, body, JSON | ({} if key is None else {"Authorization": f"Bearer {key}"}))


def test_a_swap_answers_what_it_did(administered, folder):
    answer = order(administered, SWAP, {"path": str(folder / "fine"), "policy": "recompute", "timeout": 5})
    assert answer.status == 200
    told = answer.json
    assert set(told.pop("seconds")) == {"check", "read", "stall", "drain"}
    assert told == {
        "object": "weights", "model": "toy", "path": str(folder / "fine"), "policy": "recompute", "weights_version": 1,
        "ended_requests": 0,
    }  # fmt: skip
    assert administered.get("/ready").json["weights_version"] == 1
    metrics = administered.get("/metrics").body.decode()
    assert 'xlaserve:weights_version{model_name="toy"} 1.0' in metrics
    assert 'xlaserve:weight_swap_seconds_count{model_name="toy"} 1.0' in metrics


@pytest.mark.parametrize("key", [None, "", "wrong", "sk-alice", KEY[:-1]])
@pytest.mark.parametrize("path", [SWAP, "/admin/nothing", "/admin/models/other/weights"])
def test_without_the_admin_key_it_is_a_401(administered, folder, path, key):
    answer = order(administered, path, {"path": str(folder / "fine")}, key)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


def test_the_admin_key_is_no_api_key(administered):
    assert administered.post("/v1/completions", {}, JSON | {"Authorization": f"Bearer {KEY}"}).status == 401


@pytest.mark.parametrize("key", [None, "sk-alice"])
def test_without_an_admin_key_nobody_is_let_in_and_told_what_to_set(make_live, folder, key):
    server = make_live(make_store=ToyStore)
    answer = order(server, SWAP, {"path": str(folder / "fine")}, key)
    assert (answer.status, answer.error["code"]) == (403, "admin_key_not_set")
    assert "server.admin_key" in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": 5}, "path"),
        ({"path": "fine"}, "path"),
        ({"path": "/a\0b"}, "path"),
        ({"path": "/x", "policy": "hurry"}, "policy"),
        ({"path": "/x", "timeout": -1}, "timeout"),
        ({"path": "/x", "timeout": 3601}, "timeout"),
        ({"path": "/x", "when": "now"}, "when"),
    ],
    ids=str,
)
def test_a_wrong_order_is_a_400_that_names_the_field(administered, body, param):
    answer = order(administered, SWAP, body)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_weights_that_cannot_be_used_are_a_400_that_tells_why(administered, folder):
    for name, told in (("bad", "too short"), ("missing", "There is no")):
        answer = order(administered, SWAP, {"path": str(folder / name)})
        assert (answer.status, answer.error["param"]) == (400, "path")
        assert told in answer.error["message"]
    assert administered.get("/ready").json["weights_version"] == 0


def test_another_model_is_a_404(administered, folder):
    answer = order(administered, "/admin/models/other/weights", {"path": str(folder / "fine")})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


def make_links(folder: Path) -> None:
    """From inside to outside, as a file, a folder, and a file in a folder."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "fine").write_text("")
    (folder / "link").symlink_to(folder.parent / "beside")
    (folder / "linked").symlink_to(outside)
    (folder / "model").mkdir()
    (folder / "model" / "weights").symlink_to(folder.parent / "beside")


@pytest.mark.parametrize(
    "name", ["../beside", "link", "linked", "linked/fine", "model", "../nothing", "../allowed-too/fine", "/etc/passwd"]
)
def test_a_path_outside_is_refused_whether_there_is_something_or_not(folder, name):
    make_links(folder)
    (folder.parent / "allowed-too").mkdir()
    with pytest.raises(InvalidRequest) as caught:
        AdminAccess(KEY, [folder]).resolve(os.path.join(folder, name))
    assert (caught.value.status, caught.value.code) == (403, "path_not_allowed")


def test_links_that_stay_inside_are_followed(folder, tmp_path):
    (folder / "snapshot").mkdir()
    (folder / "snapshot" / "weights").symlink_to(folder / "fine")
    (tmp_path / "other").symlink_to(folder)
    for listed in (folder, tmp_path / "other"):
        access = AdminAccess(KEY, [listed])
        assert access.resolve(str(folder / "snapshot")) == folder / "snapshot"
        assert access.resolve(str(tmp_path / "other" / "fine")) == folder / "fine"


def test_without_listed_folders_no_path_is_read(folder):
    with pytest.raises(InvalidRequest, match=r"server\.admin_paths") as caught:
        AdminAccess(KEY).resolve(str(folder / "fine"))
    assert caught.value.status == 403


def test_the_key_is_written_or_in_a_file_and_is_nobody_elses(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert read_admin_key(ServerSection(), []) is None
    assert read_admin_key(ServerSection(admin_key=KEY), ["sk-alice"]) == KEY  # type: ignore[arg-type]
    assert read_admin_key(ServerSection(admin_key_file=file), []) == KEY
    for section, others, told in (
        (ServerSection(admin_key_file=file), [KEY], "tenant"),
        (ServerSection(admin_key=" "), [], "server.admin_key"),  # type: ignore[arg-type]
        (ServerSection(admin_key_file=tmp_path / "none"), [], "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=told) as caught:
            read_admin_key(section, others)
        assert KEY not in str(caught.value)


def test_sleep_and_wake(administered):
    assert order(administered, "/admin/sleep?level=2&timeout=5", None).json["sleep_levels"] == {"toy": 2}
    answer = administered.post("/v1/completions", {"model": "toy", "prompt": "hi"}, JSON | ALICE)
    assert (answer.status, answer.error["code"], answer.headers["Retry-After"]) == (503, "service_unavailable", "1")
    assert "/admin/wake" in answer.error["message"]
    assert administered.get("/health").status == 200
    ready = administered.get("/ready")
    assert (ready.status, ready.json["engine"], ready.json["sleep_level"]) == (503, "asleep", 2)
    assert 'sleep_state="discard_all"} 1.0' in administered.get("/metrics").body.decode()
    told = order(administered, "/admin/wake", None).json
    assert told.pop("seconds") >= 0
    assert told == {"object": "sleep", "sleep_levels": {"toy": 0}}
    assert 'sleep_state="awake"} 1.0' in administered.get("/metrics").body.decode()
    answer = administered.post("/v1/completions", {"model": "toy", "prompt": "hi"}, JSON | ALICE)
    assert answer.json["choices"][0]["text"] == "hello"
    assert administered.get("/ready").status == 200


@pytest.mark.parametrize("path", ["/admin/sleep", "/admin/wake"])
def test_orders_of_sleep_need_the_key_and_take_no_other_field(administered, path):
    assert order(administered, path, None, key="sk-alice").status == 401
    for query, status, param in (("when=now", 400, "when"), ("model=other", 404, "model")):
        answer = order(administered, f"{path}?{query}", None)
        assert (answer.status, answer.error["param"]) == (status, param)


@pytest.mark.parametrize(("query", "param"), [("level=3", "level"), ("level=", "level"), ("timeout=x", "timeout")])
def test_a_wrong_sleep_is_a_400_that_names_the_field(administered, query, param):
    answer = order(administered, f"/admin/sleep?{query}", None)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_server_asleep_for_it_is_idle_is_ready_and_wakes(make_live):
    server = make_live(make_store=ToyStore, sleep_after=0.2)
    assert wait_until(lambda: server.service.asleep == 1)
    ready = server.get("/ready")
    assert (ready.status, server.get("/health").status) == (200, 200)
    assert server.complete().json["choices"][0]["text"] == "hello"
    events = server.complete(stream=True).events
    assert events
