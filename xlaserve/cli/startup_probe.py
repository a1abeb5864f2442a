"""One start, measured from within: `python -m xlaserve.cli.startup_probe CONFIG KEY=VALUE...` (CONFIG may be empty).

It goes the way of `xlaserve generate` to the first token and prints one line of JSON: all times are of the clock that
other processes have too.
"""

import time

BEGAN = time.time()  # before anything else is imported

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

PROMPT_IDS = (1, 2, 3, 4, 5)  # of any model


def main(config_file: str, settings: list[str]) -> None:
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.cli.options import cache_dir
    from xlaserve.cli.startup_runs import FIRST_TOKEN, LIMIT
    from xlaserve.config import load_config
    from xlaserve.engine.build import build_service
    from xlaserve.sampling_params import SamplingParams

    imported = time.time()
    config = load_config(Path(config_file) if config_file else None, settings)
    with ConsoleReporter() as reporter:
        service = build_service(config, cache_dir=cache_dir(), reporter=reporter)
    asked = time.time()
    for _ in service.submit(PROMPT_IDS, SamplingParams(max_tokens=1, temperature=0)):
        pass
    first_token = time.time()
    has_late = bool(service.startup.late().left)
    service.late.wait(LIMIT)
    late = [("other programs", asked, time.time())] if has_late else []
    offset = time.time() - time.monotonic()
    startup = service.startup
    spans = [(span.name, span.start + offset, span.end + offset) for span in startup.spans()]
    result = {
        "spans": [("import", BEGAN, imported), *spans, (FIRST_TOKEN, asked, first_token), *late],
        "compiled": sum(startup.compiled().values()),
        "cache_hits": startup.cache_hits(),
        "loaded": startup.loaded(),
    }
    print(json.dumps(result), flush=True)
    service.shutdown(timeout=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
