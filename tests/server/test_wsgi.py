"""The WSGI seam: addresses that cannot be had, and the end of a server whose threads are stuck."""

import logging
import socket
import threading

import pytest

from tests.server.harness import wait_until
from xlaserve.errors import ConfigError
from xlaserve.server import wsgi


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "no.such.host.invalid"], ids=["label too long", "no label", "none"])
def test_a_host_that_is_none(host):
    with pytest.raises(ConfigError, match="cannot listen on"):
        wsgi.bind(host, 0)


def test_a_thread_that_outlives_the_server_disturbs_nobody(monkeypatch, caplog):
    """The worst moment to finish: the pipe that wakes the loop is closed, and its own connection is not yet."""
    monkeypatch.setattr(wsgi, "CLOSE_SECONDS", 0.0)
    monkeypatch.setattr(wsgi, "WORKER_SECONDS", 0.0)
    entered, go_on, left = threading.Event(), threading.Event(), []

    def app(_environ, start_response):
        left.append(threading.current_thread())
        entered.set()
        go_on.wait(10)
        start_response("200 OK", [])
        return [b""]

    close_all = wsgi.wasyncore.close_all

    def close_slowly(sockets):
        server._server.trigger.close()
        go_on.set()
        assert wait_until(lambda: not left[0].is_alive(), 5)
        close_all(sockets)

    monkeypatch.setattr(wsgi.wasyncore, "close_all", close_slowly)
    sock = wsgi.bind("127.0.0.1", 0)
    server = wsgi.HttpServer(app, sock, max_requests=1, max_body=100)
    client = socket.create_connection((server.host, server.port))
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert entered.wait(5)
    server.close()
    client.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
