"""API keys: who is let in, what the others are told, and that no key is ever shown."""

import hmac
import traceback

import pytest

from xlaserve.config import TenantSection, load_config
from xlaserve.errors import ConfigError
from xlaserve.server.auth import ApiKeys, read_keys
from xlaserve.server.errors import Unauthorized

KEYS = {"alice": "sk-alice", "bob": "sk-bob-longer"}
JSON = {"Content-Type": "application/json"}
SECRET = "sk-do-not-show-me"


@pytest.fixture
def guarded(make_live):
    return make_live(api_keys=KEYS)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic sk-alice", "sk-alice"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/nothing"])
def test_without_a_known_key_it_is_a_401(guarded, path, header):
    answer = guarded.post(path, b"not even json", JSON | ({} if header is None else {"Authorization": header}))
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["Www-Authenticate"] == "Bearer"  # as waitress spells it


@pytest.mark.parametrize("header", ["Bearer sk-alice", "bearer sk-bob-longer", "Bearer  sk-alice "])
def test_a_known_key_is_let_in(guarded, header):
    answer = guarded.post("/v1/completions", {"model": "toy", "prompt": "hi"}, JSON | {"Authorization": header})
    assert answer.json["choices"][0]["text"] == "hello"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/docs"])
def test_probes_need_no_key(guarded, path):
    assert guarded.get(path).status == 200


def test_without_keys_everybody_is_let_in_whatever_they_send(live):
    assert live.post("/v1/completions", {"model": "toy", "prompt": "hi"}, JSON | {"Authorization": "x"}).status == 200


def test_each_key_is_its_tenants_and_all_are_compared(monkeypatch):
    keys = ApiKeys(KEYS)
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b))
    for tenant, key in KEYS.items():
        assert keys.tenant_of(f"Bearer {key}") == tenant
    with pytest.raises(Unauthorized):
        keys.tenant_of("Bearer é")
    assert len(compared) == 3 * len(KEYS)
    assert len({length for lengths in compared for length in lengths}) == 1
    assert "sk-" not in repr(vars(keys))


def test_keys_come_from_the_config_and_from_files(tmp_path):
    (tmp_path / "bob").write_text("sk-bob\n")
    overrides = ["server.api_keys.alice.key=sk-alice", f"server.api_keys.bob.key_file={tmp_path / 'bob'}"]
    config = load_config(None, [*overrides, "server.api_keys.bob.weight=3"])
    assert read_keys(config.server.api_keys) == {"alice": "sk-alice", "bob": "sk-bob"}
    assert [tenant.weight for tenant in config.server.api_keys.values()] == [1, 3]
    assert "sk-alice" not in f"{config} {config!r} {config.model_dump_json()}"


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "tab\there"])
def test_keys_that_no_header_can_carry_are_refused(key):
    with pytest.raises(ConfigError, match=r"server\.api_keys\.alice.*ASCII"):
        read_keys({"alice": TenantSection.model_validate({"key": key})})


def test_two_tenants_cannot_have_one_key(tmp_path):
    sections = {name: TenantSection.model_validate({"key": SECRET}) for name in ("alice", "bob")}
    with pytest.raises(ConfigError, match=r"server\.api_keys\.bob.*same key.*alice") as caught:
        read_keys(sections)
    assert SECRET not in str(caught.value)


def test_a_key_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "missing", tmp_path / "binary"):
        with pytest.raises(ConfigError, match=rf"server\.api_keys\.alice\.key_file: {file}"):
            read_keys({"alice": TenantSection.model_validate({"key_file": file})})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("server.api_keys.alice={}", "either key or key_file"),
        (f"server.api_keys.alice={{key: {SECRET}, key_file: x}}", "either key or key_file"),
        (f"server.api_keys.alice={{key: {SECRET}, weight: 0}}", "alice.weight is '0'"),
        (f"server.api_keys.alice={{key: {SECRET}, weight: -1}}", "greater than 0"),
        (f"server.api_keys.alice={{key: {SECRET}, weight: .inf}}", "alice.weight"),
        (f"server.api_keys.alice={{key: [{SECRET}]}}", "alice.key"),
        (f"server.api_keys.alice={{kee: {SECRET}}}", "'server.api_keys.alice.key'"),
        (f"server.api_keys.alice={SECRET}", "server.api_keys.alice"),
        (f"server.api_keys={SECRET}", "server.api_keys"),
        (f"server.api_keys.a b={{key: {SECRET}}}", "server.api_keys"),
        (f"server.api_keys.alice.key=[{SECRET}", "not valid YAML"),
        (f"server.port.api_keys.key={SECRET}", "is not a section"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_told_without_its_key(override, told):
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["server.port=1", override])
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "api_keys: {alice: {key: 'KEY}}",
        "api_keys: {alice: {key: KEY, key: KEY}}",
        "api_keys: {alice: {key: KEY: 3}}",
        "api_keys: {alice: {key: @KEY}}",
        "api_keys: {alice: {key: *KEY}}",
        "api_keys: {alice: {key: !KEY x}}",
        "api_keys: {alice: {key: KEY, weight: [}}",
        "api_keys: {alice: {weight: {key: KEY}}}",
        "api_keys: {weight: KEY}",
        "[{api_keys: KEY}]",
        "{host: {api_keys: KEY}}",
    ],
)
def test_a_config_file_that_is_wrong_is_told_without_its_keys(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(f"seed: 1\nserver:\n  {text}\n".replace("KEY", SECRET))
    with pytest.raises(ConfigError, match=r"line [34]|server") as caught:
        load_config(path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
