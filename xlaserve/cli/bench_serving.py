"""xlaserve bench serving: load on a server that speaks OpenAI's API."""

import itertools
import json
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from xlaserve.cli.bench_outputs import OUTPUT, check_outputs, needs
from xlaserve.cli.options import decorated, user_errors

if TYPE_CHECKING:
    from xlaserve.bench.client import Answer, Server
    from xlaserve.bench.workload import Drawn, Job

_INPUT = click.Path(path_type=Path)
_COUNT = click.IntRange(min=1)
_DATASETS = ("random", "sharegpt", "prefix_repetition", "custom", "trace")
_FILES = ("custom", "trace")  # datasets that are nothing but a file


def workload_options(
    function: Callable, *, num_prompts: int = 1000, input_len: int = 1024, output_len: int = 128
) -> Callable:
    """What is sent, for `jobs_of`. num_prompts: how many are drawn, where the user does not say."""
    many = f"How many.  [default: {num_prompts}; of a file: all]"
    options = [
        click.option("--dataset-name", type=click.Choice(_DATASETS), default="random", show_default=True),
        click.option("--dataset-path", type=_INPUT, help="Of sharegpt (or lengths like its are drawn), custom, trace."),
        click.option("--num-prompts", type=_COUNT, help=many),
        click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn at random."),
        click.option("--random-input-len", "--input-len", type=_COUNT, default=input_len, show_default=True),
        click.option("--random-output-len", "--output-len", type=_COUNT, default=output_len, show_default=True),
        click.option("--random-range-ratio", type=float, default=0.0, show_default=True, help="Lengths +- this part."),
        click.option("--random-prefix-len", type=click.IntRange(min=0), default=0, show_default=True),
        click.option("--prefix-repetition-prefix-len", type=_COUNT, default=256, show_default=True),
        click.option("--prefix-repetition-suffix-len", type=_COUNT, default=256, show_default=True),
        click.option("--prefix-repetition-num-prefixes", type=_COUNT, default=10, show_default=True),
        click.option("--prefix-repetition-output-len", type=_COUNT, default=128, show_default=True),
        click.option("--sharegpt-output-len", type=_COUNT, help="In place of the length of the file's answers."),
        click.option("--sharegpt-max-len", type=click.IntRange(min=2), default=2048, help="If drawn.  [default: 2048]"),
        click.option("--custom-output-len", type=_COUNT, default=256, show_default=True, help="Where a line has none."),
    ]  # fmt: skip
    return decorated(function, options)


def jobs_of(options: dict[str, Any], *, num_prompts: int = 1000) -> "list[Job]":
    """num_prompts: as for `workload_options`.

    Raises ConfigError, and click.UsageError for options of another dataset too.
    """
    from xlaserve.bench.workload import Drawn

    name, path, count = options["dataset_name"], options["dataset_path"], options["num_prompts"] or num_prompts
    if name in _FILES and path is None:
        raise click.UsageError(f"--dataset-name {name} needs --dataset-path.")
    if path is not None and name not in (*_FILES, "sharegpt"):
        raise click.UsageError(f"--dataset-path: the dataset {name} is drawn at random and reads no file.")
    _refuse_options_of_others(name)
    if name == "sharegpt" and path is None and options["sharegpt_output_len"]:
        raise click.UsageError("--sharegpt-output-len: without --dataset-path lengths are drawn; leave it out.")
    if name in _FILES or path is not None:
        _refuse_given("sharegpt_max_len", "lengths are those of the file.")
    drawn = Drawn(options["seed"])
    if path is not None:
        return _read(name, path, drawn, options)[: options["num_prompts"]]
    match name:
        case "random":
            return list(drawn.fixed(
                count,
                options["random_input_len"],
                options["random_output_len"],
                range_ratio=options["random_range_ratio"],
                prefix_len=options["random_prefix_len"],
            ))  # fmt: skip
        case "prefix_repetition":
            lengths = ("prefix_len", "suffix_len", "num_prefixes", "output_len")
            return list(drawn.prefix_repetition(count, *(options[f"prefix_repetition_{each}"] for each in lengths)))
        case _:
            return list(drawn.chats(count, options["sharegpt_max_len"]))


def _refuse_options_of_others(dataset: str) -> None:
    for other in ("random", "sharegpt", "prefix_repetition", "custom"):
        if other != dataset:
            for option in click.get_current_context().params:
                if option.startswith(f"{other}_"):
                    _refuse_given(option, f"the dataset is {dataset}: choose --dataset-name {other}, or leave it out.")


def _refuse_given(option: str, why: str) -> None:
    if click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--{option.replace('_', '-')}: {why}")


def _read(name: str, path: Path, drawn: "Drawn", options: dict[str, Any]) -> "list[Job]":
    from xlaserve.bench.workload import read_custom, read_lengths, read_sharegpt

    match name:
        case "sharegpt":
            return read_sharegpt(path, options["sharegpt_output_len"])
        case "custom":
            return read_custom(path, options["custom_output_len"])
        case _:
            return read_lengths(path, drawn)


def load_options(function: Callable) -> Callable:
    """How it is sent, for `send`."""
    options = [
        click.option("--endpoint", default="/v1/completions", show_default=True, help="Or /v1/chat/completions."),
        click.option("--model", help="Its name at the server.  [default: the first that the server lists]"),
        click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Sent as a bearer token."),
        click.option("--request-rate", type=float, default=inf, help="Requests/s, open loop.  [default: all at once]"),
        click.option("--burstiness", type=float, default=1.0, show_default=True, help="1: Poisson; less: in bursts."),
        click.option("--max-concurrency", type=_COUNT, help="Requests on their way at most; no rate: a closed loop."),
        click.option("--num-warmups", type=_COUNT, default=1, show_default=True, help="Requests before, not measured."),
        click.option("--ignore-eos", is_flag=True, help="All answers have the asked length (a field of vLLM's)."),
        click.option("--temperature", type=float, default=0.0, show_default=True),
        click.option("--top-p", type=float, help="Left to the server where not given."),
        click.option("--extra-body", metavar="JSON", help="Further fields of each request."),
    ]
    return decorated(function, options)


@click.command(name="serving", short_help="Load on a server that speaks OpenAI's API.")
@click.option("--base-url", help="Of the server.  [default: http://HOST:PORT]")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@load_options
@workload_options
@click.option("--metric-percentiles", default="99", show_default=True, help="For instance 50,90,99.")
@click.option(
    "--goodput", multiple=True, metavar="METRIC:MS", help="Count requests within all limits: ttft, tpot, e2el."
)
@click.option("--json", "--result-filename", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--plot", "plot_file", type=OUTPUT, help="Write a picture (PNG) there; needs matplotlib.")
@user_errors
def command(json_file: Path | None, plot_file: Path | None, **options: Any) -> None:
    """Send requests to a running server, of whatever make, and tell how fast the answers come.

    Options have the names of `vllm bench serve`, and so do the figures in the JSON. Needs the extra `bench`.

    Lengths of prompts are in common English words, a token each to most tokenizers; the table tells what the server
    counted. A custom file has an object with `prompt`, and `output_tokens` if need be, on each line. A trace has
    lengths and arrivals: see `xlaserve bench scheduler --help`.

    \b
    Examples:
      xlaserve bench serving --num-prompts 100 --max-concurrency 16 --input-len 128 --output-len 64 --ignore-eos
      xlaserve bench serving --dataset-name sharegpt --request-rate 4 --goodput "ttft:500 tpot:50"
      xlaserve bench serving --dataset-name prefix_repetition --max-concurrency 8
      xlaserve bench serving --base-url http://10.0.0.7:8000 --dataset-name trace --dataset-path requests.jsonl

    """
    check_outputs(json_file, plot_file)
    needs("aiohttp")
    percentiles, goodput = _percentiles(options["metric_percentiles"]), _limits(options["goodput"])
    jobs = jobs_of(options)
    url = options["base_url"] or f"http://{options['host']}:{options['port']}"
    server, answers = send(url, options, jobs)
    from xlaserve.bench.report import make_report
    from xlaserve.cli.bench_serving_table import print_report

    report = make_report(answers, percentiles=percentiles, goodput=goodput)
    print_report(report, percentiles)
    if json_file:
        asked = {name: value for name, value in options.items() if name != "api_key"} | {"model": server.model}
        json_file.write_text(json.dumps({"options": asked} | report, indent=2, default=str) + "\n", encoding="utf-8")
    if plot_file:
        from xlaserve.bench.plot import save_plot

        save_plot(answers, f"{len(answers)} requests of {server.model} at {server.url}", plot_file)
    if report["failed"]:
        raise SystemExit(1)


def send(url: str, options: dict[str, Any], jobs: "Sequence[Job]") -> "tuple[Server, list[Answer]]":
    """The jobs, as `load_options` say. Raises ServerFailed, ConfigError and click.UsageError."""
    import asyncio

    from xlaserve.bench.client import Server, model_of, send_all
    from xlaserve.bench.workload import arriving
    from xlaserve.cli.console import ConsoleReporter

    body = _body(options)
    if options["request_rate"] == inf:
        _refuse_given("burstiness", "there is no --request-rate; all requests are sent at once.")
    if options["dataset_name"] != "trace":
        jobs = arriving(jobs, options["request_rate"], options["burstiness"], options["seed"])
    elif options["request_rate"] != inf:
        raise click.UsageError("--request-rate: a trace has times of arrival of its own.")
    url = url.rstrip("/")
    model = options["model"] or asyncio.run(model_of(url, options["api_key"]))
    server = Server(url, model, options["endpoint"], options["api_key"], body)
    done = itertools.count(1)
    with ConsoleReporter() as reporter:
        sending = send_all(
            server,
            jobs,
            max_concurrency=options["max_concurrency"],
            warmups=options["num_warmups"],
            on_done=lambda: reporter.progress("requests", next(done), len(jobs)),
        )
        return server, asyncio.run(sending)


def _body(options: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"temperature": options["temperature"]}
    if options["top_p"] is not None:
        body["top_p"] = options["top_p"]
    if options["ignore_eos"]:
        body["ignore_eos"] = True
    try:
        extra = json.loads(options["extra_body"] or "{}")
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--extra-body: is no JSON: {error}") from None
    if not isinstance(extra, dict):
        raise click.UsageError("--extra-body: must be a JSON object")
    return body | extra


def _percentiles(text: str) -> list[float]:
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--metric-percentiles {text}: write it as numbers, for instance 50,90,99") from None
    if not all(0 <= each <= 100 for each in found):
        raise click.UsageError(f"--metric-percentiles {text}: must be between 0 and 100")
    return found


def _limits(given: Sequence[str]) -> dict[str, float] | None:
    limits = {}
    for text in " ".join(given).split():
        metric, _, limit = text.partition(":")
        try:
            if metric not in ("ttft", "tpot", "e2el"):
                raise ValueError
            limits[metric] = float(limit)
        except ValueError:
            raise click.UsageError(f"--goodput {text}: write it as ttft:500, tpot:50 or e2el:9000, in ms") from None
    return limits or None
