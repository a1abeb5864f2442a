"""/v1/files: what is stored, for whom, and what no upload can do."""

import os
import random
import threading

import pytest

from tests.server.filing import TENANTS, as_tenant, content, form, upload, uploaded
from xlaserve.errors import ConfigError
from xlaserve.server.batches.storage import lock_folder

LINE = b'{"custom_id": "a"}\n'


def test_a_file_is_stored_shown_read_and_deleted(keep):
    server = keep()
    shown = upload(server, LINE * 3).json
    expected = {"object": "file", "bytes": 57, "filename": "in.jsonl", "purpose": "batch", "status": "processed"}
    assert {name: shown[name] for name in expected} == expected
    assert server.get(f"/v1/files/{shown['id']}").json == shown
    assert server.get("/v1/files").json["data"] == [shown]
    assert content(server, shown["id"]) == LINE * 3
    gone = server.request("DELETE", f"/v1/files/{shown['id']}")
    assert gone.json == {"id": shown["id"], "object": "file", "deleted": True}
    for answer in (server.get(f"/v1/files/{shown['id']}"), server.request("DELETE", f"/v1/files/{shown['id']}")):
        assert (answer.status, answer.error["code"]) == (404, "file_not_found")


def test_files_survive_a_restart_and_damage_is_left_out(keep, tmp_path, caplog):
    server = keep()
    ids = [uploaded(server, LINE * n) for n in (1, 2, 3, 4, 5)]
    folder = tmp_path / "files" / "files"
    (folder / f"{ids[0]}.json").write_text('{"id": "file-')
    (folder / f"{ids[1]}.data").unlink()
    (folder / f"{ids[2]}.json").unlink()
    (tmp_path / "files" / "incoming" / "cut").write_bytes(b"half")
    again = keep()
    assert [file["id"] for file in again.get("/v1/files?order=asc").json["data"]] == ids[3:]
    assert content(again, ids[4]) == LINE * 5
    assert [ids[0] in message or ids[1] in message for message in caplog.messages] == [True, True]
    assert (folder / f"{ids[0]}.data").exists()  # its metadata may be mended by hand
    assert not (folder / f"{ids[2]}.data").exists()
    assert list((tmp_path / "files" / "incoming").iterdir()) == []


def test_pages_and_filters(keep):
    server = keep()
    ids = [uploaded(server, LINE) for _ in range(5)]

    def listed(query):
        answer = server.get(f"/v1/files{query}").json
        return [file["id"] for file in answer["data"]], answer["has_more"]

    assert listed("") == (ids[::-1], False)
    assert listed("?limit=2") == (ids[:2:-1], True)
    assert listed(f"?limit=2&after={ids[3]}") == (ids[2:0:-1], True)
    assert listed(f"?limit=2&after={ids[1]}&order=asc") == (ids[2:4], True)
    assert listed("?purpose=batch_output") == ([], False)
    for query, param in [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=no", "after"),
                         ("limit=1&limit=2", "limit"), ("page=2", "page")]:  # fmt: skip
        answer = server.get(f"/v1/files?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


def test_a_tenant_sees_its_own_files_only(keep):
    server = keep(api_keys=TENANTS)
    mine = uploaded(server, LINE, tenant="alice")
    theirs = uploaded(server, LINE, tenant="bob")
    for name, own, other in (("alice", mine, theirs), ("bob", theirs, mine)):
        listed = server.request("GET", "/v1/files", headers=as_tenant(name)).json["data"]
        assert [file["id"] for file in listed] == [own]
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert server.request(method, f"/v1/files/{other}{path}", headers=as_tenant(name)).status == 404
    assert server.get("/v1/files").status == 401


@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "a/b\\c", "x\x00y", "n" * 5000, "日本.jsonl", "..", ".", "", "\\x22;drop"],
    ids=lambda name: ascii(name)[:20],
)
def test_a_file_name_is_a_label_and_no_path(keep, tmp_path, name):
    server = keep()
    before = {path.name for path in tmp_path.rglob("*")}
    answer = upload(server, LINE, filename=name)
    made = {path.name for path in tmp_path.rglob("*")} - before
    if answer.status == 200:
        assert made == {f"{answer.json['id']}.json", f"{answer.json['id']}.data"}
        assert len(answer.json["filename"]) <= 255
        assert "\x00" not in answer.json["filename"]
    else:  # no file name at all
        assert (answer.status, answer.error["param"]) == (400, "file")
        assert made == set()


@pytest.mark.parametrize(
    "file_id", ["..", "file-..", "..%2f..%2fetc%2fpasswd", "%00", "file-" + "0" * 32, "file-" + "A" * 32, "x" * 3000]
)
def test_no_id_is_a_path(keep, file_id):
    server = keep()
    uploaded(server, LINE)
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = server.request(method, f"/v1/files/{file_id}{path}")
        assert answer.status in (404, 405)
        assert answer.error["message"]


def test_limits(keep, tmp_path):
    server = keep(max_file_bytes=1000, max_total_bytes=10_000)
    assert upload(server, b"x" * 1000).status == 200
    for size in (1001, 70_000, 200_000):
        answer = upload(server, b"x" * size)
        assert (answer.status, "1000 bytes" in answer.error["message"]) == (413, True)
    assert server.complete(prompt="x" * 200_000).status == 413  # the limit of other bodies is theirs
    file_id = uploaded(server, b"x")
    answer = upload(server, b"x")  # each is counted as 4096 bytes at least
    assert (answer.status, answer.error["code"]) == (413, "storage_full")
    server.request("DELETE", f"/v1/files/{file_id}")
    assert upload(server, b"x").status == 200
    assert list((tmp_path / "files" / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({"purpose": "batch"}, [], "file"),
        ({"purpose": "batch", "file": "text"}, [], "file"),
        ({"purpose": "batch"}, [("file", "a", b"")], "file"),
        ({"purpose": "batch"}, [("file", "a", b"x"), ("file", "b", b"x")], "file"),
        ({"purpose": "batch"}, [("file", "a", b"x"), ("other", "b", b"x")], "other"),
        ({}, [("file", "a", b"x")], "purpose"),
        ({"purpose": "fine-tune"}, [("file", "a", b"x")], "purpose"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, [("file", "a", b"x")], "expires_after[seconds]"),
        ({"purpose": "x" * 100_000}, [("file", "a", b"x")], None),
        ({f"f{n}": "x" for n in range(20)}, [], None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_form_is_refused(keep, tmp_path, fields, files, param):
    server = keep()
    answer = server.post("/v1/files", *form(fields, files))
    assert (answer.status, answer.error["param"]) == (400, param)
    assert list((tmp_path / "files" / "incoming").iterdir()) == []
    assert server.get("/v1/files").json["data"] == []


def test_junk_is_refused(keep):
    server = keep()
    generator = random.Random(1)
    body, headers = form({"purpose": "batch"}, [("file", "a", LINE * 20)])
    for _ in range(100):
        junk = bytearray(body)
        for _ in range(generator.randrange(1, 20)):
            junk[generator.randrange(len(junk))] = generator.randrange(256)
        answer = server.post("/v1/files", bytes(junk[: generator.randrange(len(junk))]), headers)
        assert answer.status in (200, 400), bytes(junk)
        if answer.status == 400:
            assert answer.error["message"]
    for content_type in ("application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/plain", ""):
        assert server.post("/v1/files", body, {"Content-Type": content_type}).error["message"]


def test_uploads_at_the_same_time(keep):
    server = keep(max_total_bytes=2**20)
    datas = [bytes([65 + n]) * 30_000 for n in range(6)]
    ids = [""] * 6
    threads = [threading.Thread(target=lambda n=n: ids.__setitem__(n, uploaded(server, datas[n]))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [content(server, file_id) for file_id in ids] == datas


def test_without_a_folder_it_is_told_how_to_set_one(live):
    for method, path in [
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/x"),
        ("DELETE", "/v1/files/x"),
    ]:
        answer = live.request(method, path)
        assert (answer.status, answer.error["code"]) == (404, "files_not_configured")
        assert "--files-dir" in answer.error["message"]


def test_a_folder_has_one_server(tmp_path):
    first = lock_folder(tmp_path)
    with pytest.raises(ConfigError, match="another server"):
        lock_folder(tmp_path)
    os.close(first)
    os.close(lock_folder(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"server\.files\.folder.*cannot be written"):
        lock_folder(tmp_path / "file")
