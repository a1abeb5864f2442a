"""lm-eval, run as users run it against a live server, measures what transformers says of the same documents."""

import json
import os
import subprocess
import sys

import pytest

from tests import evaluation, tiny_models
from tests.server.tiny_server import tiny_server

pytestmark = pytest.mark.models
pytest.importorskip("lm_eval", reason="needs the extra `eval`")


@pytest.fixture(scope="module")
def responses(tmp_path_factory, cache_dir):
    """What lm-eval was answered, by task, in the order of the documents: as it logs its samples."""
    home, model = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("model") / "tiny"
    offline = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with tiny_server(model, cache_dir) as server:
        asked = {
            "model": "toy",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": model,
            "max_length": evaluation.MAX_LENGTH,
            "num_concurrent": 2,
        }
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--batch_size", "3"]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in asked.items())]
        command += ["--include_path", ".", "--tasks", "tiny_choices,tiny_texts,tiny_answers"]
        command += ["--log_samples", "--output_path", str(home / "results")]
        done = subprocess.run(
            command, cwd=evaluation.FOLDER, env=os.environ | offline, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-5000:]
    found = {}
    for file in (home / "results").rglob("samples_*.jsonl"):
        samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        found[file.name.split("_")[2]] = [sample["filtered_resps"] for sample in samples]
    return found


def recorded(kind: str) -> list:
    found = tiny_models.load(evaluation.RECORDED_FILE)
    return [found[f"{kind}/{number}"] for number in range(len(evaluation.documents(kind)))]


def test_loglikelihoods_of_choices_and_whether_they_are_greedy(responses):
    expected = recorded("choices")
    assert {greedy for choices in expected for _, greedy in choices} == {0, 1}
    for found, choices in zip(responses["choices"], expected, strict=True):
        assert [float(logprob) for logprob, _ in found] == pytest.approx([each for each, _ in choices], abs=1e-3)
        assert [str(greedy) for _, greedy in found] == [str(bool(greedy)) for _, greedy in choices]


def test_loglikelihoods_of_whole_texts(responses):
    """The longest needs two windows, the one before it fills the context to the last token."""
    assert [float(found[0]) for found in responses["texts"]] == pytest.approx(recorded("texts"), abs=1e-3)


def test_answers_end_before_a_stop_string(responses):
    until = evaluation.generation_settings()["until"]
    whole = [bytes(ids).decode(errors="replace") for ids in recorded("answers")]
    expected = [min((text.split(stop)[0] for stop in until), key=len) for text in whole]
    assert [found[0] for found in responses["answers"]] == expected
    assert sum(text != cut for text, cut in zip(whole, expected, strict=True)) == 2
