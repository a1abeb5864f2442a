"""generate, chat, fetch and --help, in a process of their own over a toy engine."""

import json
import resource
import subprocess
import sys

import pytest

COMMANDS = ("serve", "generate", "chat", "fetch", "admin", "plan", "bench")


def xlaserve(*arguments: str, script: str = "hello", stdin: str | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.cli.toy_command", script, "0", "0", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)


def test_help_is_quick_and_shows_examples():
    processor_seconds = []  # however busy the machine is
    for arguments in ([], *([name] for name in COMMANDS)):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", "from xlaserve.cli.main import main; main()", *arguments, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "Examples:" in shown
        assert "xlaserve " + " ".join(arguments) in shown
    assert min(processor_seconds) < 0.5


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from xlaserve.cli import admin, bench, chat, fetch, generate, main, serve;"
        "print([m for m in ('jax', 'flask', 'pydantic', 'transformers', 'numpy', 'rich') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert shown.stdout.strip() == "[]"


def test_version():
    assert xlaserve("--version").stdout.startswith("xlaserve, version ")


def test_generate_prints_text_only_on_stdout():
    done = xlaserve("generate", "--prompt", "hi")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "loading a toy" in done.stderr


def test_generate_several_prompts_in_order():
    for arguments in ([], ["--stream"]):
        done = xlaserve("generate", "--prompt", "a", "--prompt", "b", "--max-tokens", "4", *arguments)
        assert done.stdout == "hell\nhell\n"


def test_generate_json():
    done = xlaserve("generate", "--prompt", "a", "--prompt", "bc", "--json", "--stop", "lo")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["prompt_ids"] for result in results] == [[97], [98, 99]]
    for result in results:
        assert set(result) == {"prompt", "prompt_ids", "output_ids", "text", "finish_reason", "timings"}
        assert (result["text"], result["finish_reason"]) == ("hel", "stop")
        assert result["output_ids"] == list(b"hello")
        assert all(isinstance(seconds, float) for seconds in result["timings"].values())


def test_generate_chat_applies_the_template():
    done = xlaserve("generate", "--chat", "--prompt", "hi", "--json")
    assert len(json.loads(done.stdout)["prompt_ids"]) > len("hi")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--temperature", "3"], "temperature"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--set", "cache.blocksize=8"], "cache.block_size"),
        (["--set", "nonsense"], "section.key=value"),
        (["--model", "broken"], "broken/model.safetensors"),
        (["--json", "--stream"], "choose one"),
        (["--temperature", "warm"], "temperature"),
        (["--kv-cache-memory", "1GiB", "--num-blocks", "9"], "cache.num_blocks (9) and cache.memory (1073741824)"),
        (["--kv-cache-memory", "much"], "cache.memory"),
        (["--num-blocks", "1"], "cache.num_blocks"),
    ],
    ids=str,
)
def test_generate_tells_user_errors_in_one_line(arguments, told):
    done = xlaserve("generate", "--prompt", "hi", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["generate", "--prompt", "hi"], ["chat"]], ids=lambda command: command[0])
def test_wrong_sampling_options_are_told_before_the_model_is_loaded(command):
    for option, value in (("--max-tokens", "0"), ("--top-p", "2"), ("--stop", "")):
        done = xlaserve(*command, option, value)
        assert done.returncode == 2
        assert option.removeprefix("--") in done.stderr.replace("_", "-")
        assert "loading" not in done.stderr


def test_a_prompt_that_cannot_be_served():
    done = xlaserve("generate", "--prompt", "x" * 100_000)
    assert done.returncode == 2
    assert "maximum context length" in done.stderr


def test_an_option_with_a_colon_stays_one_value():
    done = xlaserve("generate", "--prompt", "hi", "--model", "odd: name #1")
    assert done.returncode == 0


def test_chat_answers_each_line():
    done = xlaserve("chat", "--temperature", "0", stdin="hi\n\n/clear\nagain\n")
    assert (done.returncode, done.stdout) == (0, "hello\nhello\n")


def test_chat_goes_on_after_a_conversation_that_is_too_long():
    done = xlaserve("chat", "--max-tokens", "1", stdin="x" * 100_000 + "\nhi\n")
    assert done.stdout == "h\n"
    assert "/clear" in done.stderr


def test_fetch_names_what_it_cannot_find(tmp_path, monkeypatch):
    monkeypatch.setenv("XLASERVE_CACHE", str(tmp_path))
    done = xlaserve("fetch", "not a model")
    assert done.returncode == 2
    assert "not a model" in done.stderr
