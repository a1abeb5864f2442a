"""A Reporter for tests."""

from typing import Any

from xlaserve.engine.reporter import SilentReporter


class RecordingReporter(SilentReporter):
    """Keeps the settings: {key: (value, reason)}."""

    def __init__(self):
        self.settings: dict[str, tuple[Any, str]] = {}

    def info(self, key: str, value: Any, reason: str) -> None:
        self.settings[key] = (value, reason)
