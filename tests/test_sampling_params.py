"""Values at the edges of what a device can hold."""

import numpy as np
import pytest

from xlaserve.errors import InvalidRequest
from xlaserve.runner.commands import ResetRow
from xlaserve.runner.row_state import pack_reset, reset_packing
from xlaserve.sampling_params import SamplingParams


@pytest.mark.parametrize("top_k", [1, 2**31 - 1, 2**31, 2**64, 10**400])
def test_any_top_k_fits_the_device(top_k):
    params = SamplingParams(top_k=top_k)
    assert params.top_k == min(top_k, 2**31 - 1)
    pack_reset(reset_packing(1, 1), _reset(params))


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_seed_fits_the_device(seed):
    pack_reset(reset_packing(1, 1), _reset(SamplingParams(seed=seed)))


@pytest.mark.parametrize("temperature", [0, -0.0, 5e-324, 1e-45, 1e-38, 9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature):
    assert SamplingParams(temperature=temperature).temperature == 0


def test_the_smallest_temperature_keeps_logits_finite():
    temperature = np.float32(SamplingParams(temperature=1e-5).temperature)
    assert temperature > 0
    assert np.isfinite(np.float32(1e5) / temperature)


def test_integers_beyond_every_float_are_refused():
    for field in ("temperature", "top_p", "seed"):
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{field: 10**400})
        assert caught.value.param == field


def _reset(params: SamplingParams) -> ResetRow:
    return ResetRow(
        row=0,
        block_tables=((1,),),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed or 0,
    )
