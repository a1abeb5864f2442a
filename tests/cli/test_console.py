"""Start-up as the user sees it: plain lines in a file, bars and a table in a terminal."""

import io

from xlaserve.cli.console import ConsoleReporter, Reporters


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def start_up(stream: io.StringIO) -> str:
    with ConsoleReporter(stream) as console:
        reporter = Reporters(console)
        reporter.phase("load the [weights]")
        reporter.progress("weights, bytes", 5_000_000, 98_000_000)
        reporter.progress("weights, bytes", 98_000_000, 98_000_000)
        reporter.progress("programs", 3, 12)
        reporter.info("cache.dtype", "float32", "the model's [dtype]")
    console.banner()
    return stream.getvalue()


def test_a_file_gets_plain_lines():
    first, *others = start_up(io.StringIO()).splitlines()
    assert first.endswith("] load the [weights]")
    assert others == ["cache.dtype = float32 (the model's [dtype])"]


def test_a_terminal_gets_bars_and_a_table(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    shown = start_up(Terminal())
    assert "98.0 MB/98.0 MB" in shown
    assert "3/12" in shown
    assert "because" in shown
    assert "the model's [dtype]" in shown
