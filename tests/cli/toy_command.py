"""The xlaserve command over a toy engine: `python -m tests.cli.toy_command SCRIPT STEP_SECONDS LOAD_SECONDS ARGS...`"""

import sys
import time
import types

from tests.server.toy_service import make_toy_service
from xlaserve.cli.main import main
from xlaserve.errors import CheckpointError
from xlaserve.runner.late_programs import LatePrograms


def run(script: str, step_seconds: float, load_seconds: float, arguments: list[str]) -> None:
    def build_service(config, *, cache_dir, reporter, make_room=None):
        reporter.phase("loading a toy")
        if config.model.source == "broken":
            raise CheckpointError("broken/model.safetensors: has 5 bytes; expected 8")
        for done in (0, 1):
            reporter.progress("weights", done, 1)
            time.sleep(load_seconds / 2)
        reporter.info("cache_dir", cache_dir, "as told")
        reporter.info("model.source", config.model.source, "as told")
        reporter.info("parsers", f"{config.model.tool_parser}, {config.model.reasoning_parser}", "as told")
        service = make_toy_service(script.encode(), step_seconds=step_seconds)[0]
        if config.compile.serve_early:
            service.late = LatePrograms({("body", 1): lambda: time.sleep(120)}, lambda key, program: None, 1)
        return service

    build = types.ModuleType("xlaserve.engine.build")
    vars(build)["build_service"] = build_service
    sys.modules[build.__name__] = build
    main(arguments, prog_name="xlaserve")


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
