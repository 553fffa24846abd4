"""What ``repr`` says of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .samples import Samples

if TYPE_CHECKING:
    from .batches import Batches


def describe(batches: Batches) -> str:
    """How many batches of what shape, in which order, and what is left out."""
    options, samples = batches.options, batches._samples
    shape = list(samples.shape(options.batch_size))
    lines = [f"{len(batches)} batches of {shape}, {describe_samples(samples)}"]
    if options.shuffle == "full":
        lines.append(f"order: a permutation of all, seed={options.seed}, next epoch {batches.epoch}")
    elif options.shuffle:
        blocks = batches._blocks
        lines.append(
            f"order: {len(blocks.marks) - 1} blocks shuffled, then samples in buffers of {blocks.buffer}, "
            f"seed={options.seed}, next epoch {batches.epoch}"
        )
    rest = len(samples) % options.world_size
    if options.world_size > 1:
        lines.append(f"rank {options.rank} of {options.world_size}" + (f"; {rest} samples left over" if rest else ""))
    return "Batches(" + "\n        ".join(lines) + ")"


def describe_samples(samples: Samples) -> str:
    """What the samples are, in words."""
    if samples.windows is None:
        return f"{len(samples)} rows along {samples.dim!r}"
    windows = samples.windows
    text = f"{len(samples)} windows of {windows.width} rows along {samples.dim!r}"
    if windows.skipped:
        text += f"; {windows.skipped} of {windows.episodes} episodes are shorter and skipped"
    return text
