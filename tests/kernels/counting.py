"""Counts the bytes that interpreted kernels move; shared by the tests of all derived traffic."""

import threading

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


class Counter:
    """Bytes that kernels move while they run, by name."""

    def __init__(self):
        self.bytes: dict[str, int] = {}
        self._lock = threading.Lock()  # XLA calls from several threads

    def add(self, name: str, number, itemsize: int) -> None:
        def count(number):
            with self._lock:
                self.bytes[name] = self.bytes.get(name, 0) + int(number) * itemsize

        jax.debug.callback(count, number)


def count_loads_and_stores(monkeypatch, counter: Counter) -> None:
    """Of GPU kernels, without what is masked, as "total"."""

    def counting(function):
        def wrapped(ref, *values, mask=None, **options):
            out = function(ref, *values, **({} if mask is None else dict(mask=mask)), **options)
            shape = (values[0] if values else out).shape
            number = np.prod(shape) if mask is None else jax.numpy.broadcast_to(mask, shape).sum()
            counter.add("total", number, ref.dtype.itemsize)
            return out

        return wrapped

    monkeypatch.setattr(plgpu, "load", counting(plgpu.load))
    monkeypatch.setattr(plgpu, "store", counting(plgpu.store))


class Blocks:
    """The blocks that each grid step of a TPU kernel asks for: copied are those that the step before had not."""

    def __init__(self):
        self._seen: dict[tuple, dict[tuple, int]] = {}  # by operand: bytes of a block, by (grid step, place)

    def see(self, operand: int, spec: pl.BlockSpec, array, step, index) -> None:
        """`step`, `index`: traced numbers, the grid step and the block that the spec gives for it."""

        def note(step, index):
            step, index = tuple(map(int, step)), tuple(map(int, index))
            size = 1
            for dim, number, place in zip(array.shape, spec.block_shape, index, strict=True):
                elements = isinstance(number, pl.Element)
                extent = number.block_size if elements else number or 1
                size *= min(extent, dim - (place if elements else place * extent))
            self._seen.setdefault(operand, {})[step] = (index, size * array.dtype.itemsize)

        jax.debug.callback(note, step, index)

    @property
    def bytes(self) -> int:
        jax.effects_barrier()
        total = 0
        for seen in self._seen.values():
            before = None
            for _, (index, size) in sorted(seen.items()):
                total += size if index != before else 0
                before = index
        return total


def watch_blocks(monkeypatch) -> Blocks:
    """Of every kernel called from now on: reads and writes by block specs. Only one should be."""
    blocks, make = Blocks(), pl.pallas_call

    def watched(kernel, *, out_shape, grid=(), in_specs=(), out_specs=(), grid_spec=None, **options):
        placed = dict(grid=grid, in_specs=in_specs, out_specs=out_specs)
        scalars = 0
        if grid_spec is not None:
            scalars, grid = grid_spec.num_scalar_prefetch, grid_spec.grid
            in_specs, out_specs, placed = grid_spec.in_specs, grid_spec.out_specs, dict(grid_spec=grid_spec)

        def call(*operands):
            def seen_kernel(*refs):
                step = tuple(pl.program_id(axis) for axis in range(len(grid)))
                specs = jax.tree.leaves(in_specs) + jax.tree.leaves(out_specs)
                arrays = jax.tree.leaves(operands)[scalars:] + jax.tree.leaves(out_shape)
                for operand, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
                    blocks.see(operand, spec, array, step, spec.index_map(*step, *refs[:scalars]))
                kernel(*refs)

            return make(seen_kernel, out_shape=out_shape, **placed, **options)(*operands)

        return call

    monkeypatch.setattr(pl, "pallas_call", watched)
    return blocks
