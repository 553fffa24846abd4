"""Batches that are given or recorded (rules 1 and 2), as calls of the pure function: what is found, warned or refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference_rows import grid, named, raw, time, var
from xarray_tensordict.core.model import ArrayInfo, Key, RecordedBatch

FORECAST = [var("t2m", time=4, lat=3, lon=5), var("late", lat=3, time=4), time(4), *grid()]
BUFFER = [raw("obs", 6, 3), raw("act", 6, 2), raw("mean", 3)]
SQUARE = [raw("obs", 6, 3), raw("act", 6, 3)]
TWICE = [named("cov", ("t", "s", "s"), (4, 2, 2)), var("x", t=4, s=2)]
EPISODES = [raw("a/x", 4, 2), raw("a/y", 4), raw("b/x", 9, 2), raw("b/y", 9)]
NAMED_EPISODES = [var("a/x", t=4, f=2), var("a/y", t=4), var("b/x", t=9, f=2), var("b/y", t=9)]
ONE_ODD = [*EPISODES[:2], raw("b/x", 3, 2), raw("b/y", 2)]


@dataclass(frozen=True)
class Choice:
    """One call: the arrays, and what is given or recorded."""

    name: str
    arrays: list[ArrayInfo]
    given: Any = None
    each: bool = False
    recorded: Mapping[Key, RecordedBatch] = field(default_factory=dict)
    beside: list[ArrayInfo] = field(default_factory=list)


def sized(*sizes: int, names: tuple[str | None, ...] | None = None) -> dict[Key, RecordedBatch]:
    """A record of sizes, as tensordict's own."""
    return {(): RecordedBatch(sizes, names)}


def chosen(*names: str, others: str = "", **axes: str) -> dict[Key, RecordedBatch]:
    """A record of names, as of ``set_batch_dims``: the other dims there were, and the dims that some variables had."""
    then = {variable: tuple(dims.split()) for variable, dims in axes.items()}
    return {(): RecordedBatch(None, names, frozenset(others.split()), then)}


GIVEN = [
    Choice("a name", FORECAST, "time"),
    Choice("several names", FORECAST, ["lat", "time"]),
    Choice("an unknown name", FORECAST, "tiem"),
    Choice("a name twice", FORECAST, ["time", "time"]),
    Choice("no name", FORECAST, [1]),
    Choice("no choice", FORECAST, 1.5),
    Choice("a boolean", FORECAST, True),
    Choice("no names", FORECAST, []),
    Choice("a repeated dim", TWICE, "s"),
    Choice("a count up to a repeated dim", [*TWICE[:1]], 2),
    Choice("a count over a repeated dim elsewhere", TWICE, 1),
    Choice("a count", FORECAST, 1),
    Choice("a count of none", FORECAST, 0),
    Choice("a count below none", FORECAST, -1),
    Choice("a count that is found", SQUARE, 1),
    Choice("a larger count", SQUARE, 2),
    Choice("a count beyond all axes", SQUARE, 3),
    Choice("a count that the arrays contradict", BUFFER, 2),
    Choice("a count of nothing", [raw("s"), raw("n", 4, kind="string")], 1),
    Choice("a count of arrays that share nothing", [raw("a", 4), raw("b", 5)], 1),
    Choice("a count of many that share nothing", [raw(f"a{n}", n + 2) for n in range(9)], 1),
    Choice("a count over named arrays", [var("x", t=4, f=2), raw("y", 4)], 1),
    Choice("a larger count over arrays of which some have names", [var("x", t=4, f=2), named("y", (None, "f"), (4, 2))], 2),
    Choice("a name for an axis without one", BUFFER, "step"),
    Choice("names for axes without one", SQUARE, ["step", "joint"]),
    Choice("a name beside an axis with one", [named("x", ("t", None, "f"), (4, 3, 2)), raw("s")], ["t", "env"]),
    Choice("a name that this package makes up", SQUARE, ["batch_0"]),
    Choice("a feature name that this package makes up", SQUARE, ["dim_3"]),
    Choice("a name of a dim in a nested group", [raw("a", 6, 2), var("g/x", q=6, f=2)], "q"),
    Choice("names for groups of several sizes", NAMED_EPISODES, "t"),
    Choice("names for each of several groups", NAMED_EPISODES, "t", each=True),
    Choice("a count for groups of several sizes", EPISODES, 1),
    Choice("a count for each of several groups", EPISODES, 1, each=True),
    Choice("no batch for each of several groups", EPISODES, 0, each=True),
    Choice("a count that one of several groups contradicts", ONE_ODD, 1, each=True),
    Choice("a name that no group has", NAMED_EPISODES, "q", each=True),
    Choice("a count that all groups contradict", EPISODES, 3, each=True),
    Choice("names for groups beside a small array", [raw("fps", 1), raw("g/a", 100, 3), raw("g/b", 100)], "step"),
    Choice("a count for groups beside a small array", [raw("fps", 1), raw("g/a", 100, 3), raw("g/b", 100, 3)], 2),
    Choice("a group beside one that has more", [var("th", chain=2, draw=5, s=3)],
           beside=[var("p/mu", chain=2, draw=5), var("p/th", chain=2, draw=5, s=3)]),
    Choice("a group beside one over other dims", [var("th", chain=2, draw=5, s=3)],
           beside=[var("p/mu", run=2, draw=5), var("p/th", run=2, draw=5, s=3)]),
]  # fmt: skip

RECORDED = [
    Choice("sizes", SQUARE, recorded=sized(6, 3)),
    Choice("sizes with names", SQUARE, recorded=sized(6, 3, names=("time", None))),
    Choice("no batch", SQUARE, recorded=sized()),
    Choice("a size that an array contradicts", [*SQUARE, raw("odd", 4, 2)],
           recorded=sized(6)),
    Choice("a size that all arrays contradict", SQUARE, recorded=sized(9)),
    Choice("two sizes that all arrays contradict", SQUARE, recorded=sized(9, 3)),
    Choice("a size with a name that the arrays contradict", [var("x", t=4, f=2), var("y", t=4)],
           recorded=sized(9, names=("t",))),
    Choice("a size where nothing is shared", [raw("a", 4), raw("b", 5)],
           recorded=sized(9)),
    Choice("a size where arrays are too short", [raw("a", 4), raw("b", 5)],
           recorded=sized(9, 2)),
    Choice("a size that is that of empty arrays", [raw("a", 0, 2), raw("m", 3, 3)],
           recorded=sized(0)),
    Choice("a size beside a partial array", [var("x", e=2, t=3, f=4), var("s", t=3)],
           recorded=sized(2, 3, names=("e", "t"))),
    Choice("a size beside partial arrays alone", [var("s", t=3), var("r", e=2)],
           recorded=sized(2, 3, names=("e", "t"))),
    Choice("a size beside a partial array of another size", [var("x", e=2, t=3, f=4), var("s", t=5)],
           recorded=sized(2, 3, names=("e", "t"))),
    Choice("sizes of the axes that this package named", [var("x", batch_0=3, dim_4=4), var("c", row=3)],
           recorded=sized(3)),
    Choice("a nested record", [raw("a", 6, 2), raw("g/x", 6, 3, 2)],
           recorded={(): RecordedBatch((6,), ("t",)), ("g",): RecordedBatch((6, 3), None)}),
    Choice("a nested record that does not follow", [raw("a", 6, 2), raw("g/x", 7, 3, 2)],
           recorded={(): RecordedBatch((6,), ("t",)), ("g",): RecordedBatch((7,), None)}),
    Choice("names", FORECAST, recorded=chosen("lat", "time")),
    Choice("names of no dims", FORECAST, recorded=chosen()),
    Choice("names of no dims, with a group", [raw("a", 6, 2), raw("g/x", 7, 3)],
           recorded=chosen()),
    Choice("a name beside one that is gone", [var("obs", time=4, f=3), var("r", time=4)],
           recorded=chosen("member", "time")),
    Choice("names that are gone", [var("obs", time=4, f=3), var("r", time=4)],
           recorded=chosen("member")),
    Choice("a new dim in front", [var("x", run=2, time=4, f=3)],
           recorded=chosen("time")),
    Choice("a dim in front that was there", [var("x", run=2, time=4, f=3)],
           recorded=chosen("time", others="run")),
    Choice("a feature dim in front", [var("x", lat=2, time=4, f=3)],
           recorded=chosen("time")),
    Choice("different dims in front", [var("x", run=2, time=4), var("y", model=3, time=4)],
           recorded=chosen("time")),
    Choice("a renamed dim", [var("x", member=2, lat=3, lon=4)],
           recorded=chosen("latitude", others="member", x="member latitude lon")),
    Choice("two renamed dims", [var("x", member=2, a=3, b=4)],
           recorded=chosen("lat", "lon", others="member", x="member lat lon")),
    Choice("two renamed dims after a transposition", [var("x", a=3, b=4, member=2)],
           recorded=chosen("lat", "lon", others="member", x="member lat lon")),
    Choice("a renamed dim that was passed over", [var("x", number=2, lat=3, lon=4)],
           recorded=chosen("lat", others="member", x="member lat lon")),
    Choice("a reduced dim", [var("x", member=2, lon=4)],
           recorded=chosen("lat", "lon", others="member", x="member lat lon")),
    Choice("a selected dim", [var("x", member=2, lon=4), raw("lat")],
           recorded=chosen("lat", "lon", others="member", y="member lat lon")),
    Choice("stacked dims", [var("x", member=2, s=12)],
           recorded=chosen("lat", "lon", others="member", x="member lat lon")),
    Choice("a coordinate over the new dim", [var("x", step=3, lat=4), named("time", ("step",), (3,), kind="time", role="coord")],
           recorded=chosen("time", "lat", x="time lat")),
    Choice("a dim of a variable that is gone", [var("y", a=3, lon=4), var("z", q=3)],
           recorded=chosen("lat", "lon", x="lat lon")),
    Choice("a dim that cannot be followed", [var("y", a=3, b=4)],
           recorded=chosen("lat", "lon", x="lat lon")),
    Choice("a plain choice of two, of which one is renamed", [var("x", time=2, number=3, lat=4)],
           recorded=chosen("time", "member")),
    Choice("a plain choice of two, of which one is reduced", [var("x", time=2, lat=4)],
           recorded=chosen("time", "member")),
    Choice("a plain choice that the rest does not bear out", [var("x", time=2, lat=4), var("y", run=90, f=3)],
           recorded=chosen("run", "member", "time")),
    Choice("a choice for a nested group", [var("a", t=6), var("g/x", t=6, agent=3, f=2)],
           recorded={(): RecordedBatch(None, ("t",)), ("g",): RecordedBatch(None, ("t", "agent"))}),
]  # fmt: skip
CHOICES = [*GIVEN, *RECORDED]
