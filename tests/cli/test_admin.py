"""xlaserve admin against a live server over a toy engine; the server is the one of tests/server."""

import pytest
from click.testing import CliRunner, Result

from tests.server.conftest import make_live, workers  # noqa: F401  fixtures
from tests.toy_store import ToyStore
from xlaserve.cli.admin import command
from xlaserve.server.admin_access import AdminAccess

KEY = "sk-admin"


@pytest.fixture
def run(make_live, tmp_path):  # noqa: F811
    (tmp_path / "fine").write_text("")
    server = make_live(make_store=ToyStore, admin_access=AdminAccess(KEY, [tmp_path]))

    def run(*arguments: str, key: str = KEY) -> Result:
        return CliRunner().invoke(command, [*arguments, "--url", server.url], env={"XLASERVE_ADMIN_KEY": key})

    return run


def test_swap(run, tmp_path):
    done = run("swap", str(tmp_path / "fine"), "--policy", "abort")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"toy: weights version 1, from {tmp_path}/fine (check ")


def test_sleep_and_wake(run):
    assert run("sleep", "--level", "2").stdout.startswith("toy: asleep, level 2 (after ")
    assert run("wake", "--model", "toy").stdout.startswith("toy: awake (after ")
    done = run("wake", "--model", "other")
    assert (done.exit_code, "does not exist" in done.stderr) == (2, True)


def test_load_and_unload(run):
    assert run("load", "toy").stdout.startswith("toy: ready (after ")
    stays = run("unload", "toy")
    assert (stays.exit_code, "not on demand" in stays.stderr) == (2, True)
    assert "does not exist" in run("unload", "other").stderr


def test_swap_of_another_model(run, tmp_path):
    done = run("swap", str(tmp_path / "fine"), "--model", "other")
    assert (done.exit_code, "does not exist" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "key", "told"),
    [
        (["/etc"], KEY, "server.admin_paths"),
        (["/etc"], "wrong", "admin key"),
    ],
)
def test_what_the_server_refuses_is_told(run, arguments, key, told):
    done = run("swap", *arguments, key=key)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Traceback" not in done.output


def test_a_server_that_is_not_there():
    done = CliRunner().invoke(command, ["swap", "/x", "--admin-key", KEY, "--url", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert "http://127.0.0.1:9/ready: " in done.stderr
