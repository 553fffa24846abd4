"""Variables that are added to a store: the plan for them, with the batch that the store has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import xarray as xr

from ..core.inference import infer_batch
from ..core.model import Inference, RecordedBatch
from ..dataset.describe import describe_dataset
from ..dataset.record import infer_dataset
from .plan import Source, WritePlan, plan_write, source_of_dataset
from .stored_form import Format, Layout


def plan_added(
    source: Source,
    old: xr.Dataset,
    inference: Inference | None,
    names: Collection[str],
    layout: Layout,
    format: Format,  # noqa: A002
    encoding: Mapping[str, Mapping[str, Any]],
) -> WritePlan:
    """Plan the writing of the variables `names` among those of `old`, whose batch stays as it is.

    Raises
    ------
    ValueError
        Where a dim has two sizes, or two variables claim one path.
    """
    union = _merged(source.flat, old)
    if inference is not None:
        recorded = {key: RecordedBatch(None, tuple(batch.dims)) for key, batch in inference.groups.items()}
        decided = infer_batch(describe_dataset(union), recorded=recorded)
    else:
        decided = infer_dataset(union)
    whole = source_of_dataset(union, decided)
    for key, node in whole.nodes.items():
        node.variables = {
            name: source.nodes[key].variables[name] for name in node.variables if node.names[name] in names
        }
        node.attrs = source.nodes[key].attrs if key in source.nodes else None
    return plan_write(whole, layout, format, encoding=encoding)


def _merged(new: xr.Dataset, old: xr.Dataset) -> xr.Dataset:
    """Both as one Dataset, the new variables in the place of the old ones.

    Raises
    ------
    ValueError
        Where a dim has two sizes.
    """
    for dim in set(new.sizes) & set(old.sizes):
        if new.sizes[dim] != old.sizes[dim]:
            raise ValueError(
                f"dim {dim!r} has size {old.sizes[dim]} in the store and {new.sizes[dim]} in the dataset; append "
                "with append_dim="
                f"{dim!r}, or select the same part"
            )
    variables = {**dict(old.variables), **dict(new.variables)}
    coords = {name for name in variables if name in new.coords or (name in old.coords and name not in new.variables)}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    own = xr.Coordinates({name: variables[name] for name in coords}, indexes={})
    return xr.Dataset(data, coords=own, attrs={**old.attrs, **new.attrs})
