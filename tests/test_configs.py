"""The example configurations load, and demo.yaml shows every key there is, with its default."""

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from xlaserve.config import Config, load_config

CONFIGS = Path(__file__).parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_example_loads(path):
    load_config(path)


def test_demo_yaml_holds_the_defaults():
    assert load_config(CONFIGS / "demo.yaml") == Config()


def test_demo_yaml_shows_every_key():
    shown = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    assert_shows_all(shown, Config)


def assert_shows_all(shown: dict, section: type[BaseModel]) -> None:
    assert set(shown) == set(section.model_fields), section
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            assert_shows_all(shown[name], field.annotation)
