"""Datasets modelled on well-known ones, described array by array, and what their batch is.

The answers follow from the rules of batch inference (design, section 6), not from the implementation; `why` says which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xarray_tensordict.core.inference import ArrayInfo, EvidenceKind, Kind, Role

Key = tuple[str, ...]


def key_of(path: str) -> Key:
    return tuple(path.split("/")) if path else ()


def named(
    path: str,
    dims: Sequence[str | None],
    sizes: Sequence[int],
    *,
    kind: Kind = "numeric",
    role: Role = "data",
    unlimited: Sequence[str] = (),
    attrs: Mapping[str, Any] | None = None,
) -> ArrayInfo:
    """An array with a name, or None, for each axis."""
    axes = frozenset(axis for axis, dim in enumerate(dims) if dim in unlimited)
    return ArrayInfo(key_of(path), tuple(sizes), kind, tuple(dims), role, axes, dict(attrs or {}))


def var(path: str, /, *, kind: Kind = "numeric", unlimited: Sequence[str] = (), attrs: Any = None, **dims: int):
    """A data variable: ``var("t2m", time=10, lat=3, lon=5)``."""
    return named(path, tuple(dims), tuple(dims.values()), kind=kind, unlimited=unlimited, attrs=attrs)


def coord(path: str, /, *, kind: Kind = "numeric", attrs: Any = None, **dims: int):
    """A coordinate; an index where it is one-dimensional and named like its dim."""
    role: Role = "index" if tuple(dims) == key_of(path)[-1:] else "coord"
    return named(path, tuple(dims), tuple(dims.values()), kind=kind, role=role, attrs=attrs)


def raw(path: str, /, *sizes: int, kind: Kind = "numeric"):
    """An array without names."""
    return named(path, (None,) * len(sizes), sizes, kind=kind)


LATITUDE = {"standard_name": "latitude", "units": "degrees_north"}
LONGITUDE = {"standard_name": "longitude", "units": "degrees_east"}


def grid(lat: str = "lat", lon: str = "lon", n: int = 3, m: int = 5) -> list[ArrayInfo]:
    """The index coordinates of a regular grid."""
    return [coord(lat, attrs=LATITUDE, **{lat: n}), coord(lon, attrs=LONGITUDE, **{lon: m})]


def grid2d(lat: str, lon: str, **dims: int) -> list[ArrayInfo]:
    """The two-dimensional coordinates of a curvilinear grid, or of a swath."""
    return [coord(lat, attrs=LATITUDE, **dims), coord(lon, attrs=LONGITUDE, **dims)]


def time(n: int, name: str = "time") -> ArrayInfo:
    return coord(name, kind="time", **{name: n})


@dataclass(frozen=True)
class Row:
    """One dataset and its answer.

    `batch` has the names and sizes of the batch dims of the root, None where an axis has no name; `groups` has the
    sizes of other groups. What neither `partial` nor `unbatched` names is batched, and what `either` names may be
    anything. `other_case` is False where a name is only known in lower case.
    """

    name: str
    arrays: list[ArrayInfo]
    batch: Sequence[tuple[str | None, int]]
    why: str
    evidence: EvidenceKind
    unbatched: str = ""
    partial: str = ""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    group_attrs: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    either: str = ""
    other_case: bool = True


NAMED: EvidenceKind = "shared named dims"
SHAPE: EvidenceKind = "shared shape"
UNLIMITED: EvidenceKind = "unlimited dim"
NONE: EvidenceKind = "none"

WEATHER = [
    Row(
        "air_temperature",
        [var("air", time=10, lat=3, lon=5), time(10), *grid()],
        [("time", 10)],
        "lat and lon are space",
        NAMED,
        unbatched="lat lon",
    ),
    Row(
        "ERA5 with a land mask",
        [
            var("t2m", time=10, latitude=3, longitude=5),
            var("lsm", latitude=3, longitude=5),
            time(10),
            *grid("latitude", "longitude"),
        ],
        [("time", 10)],
        "the mask has no dim of the prefix",
        NAMED,
        unbatched="lsm latitude longitude",
    ),
    Row(
        "CMIP6 with bounds",
        [
            var("tas", time=12, lat=3, lon=5),
            var("time_bnds", kind="time", time=12, bnds=2),
            var("lat_bnds", lat=3, bnds=2),
            var("lon_bnds", lon=5, bnds=2),
            named("time", ("time",), (12,), kind="time", role="index", attrs={"bounds": "time_bnds"}),
            named("lat", ("lat",), (3,), role="index", attrs={**LATITUDE, "bounds": "lat_bnds"}),
            named("lon", ("lon",), (5,), role="index", attrs={**LONGITUDE, "bounds": "lon_bnds"}),
            named("height", (), (), role="coord"),
        ],
        [("time", 12)],
        "bounds are referenced and have no vote",
        NAMED,
        unbatched="lat_bnds lon_bnds lat lon height",
    ),
    Row(
        "bounds of higher rank than the data",
        [
            var("tas", time=12),
            var("hgt_edges", hgt=4, edge=2),
            named("time", ("time",), (12,), kind="time", role="index"),
            named("hgt", ("hgt",), (4,), role="index", attrs={"bounds": "hgt_edges"}),
        ],
        [("time", 12)],
        "what CF references has no vote, so the data has the highest rank",
        NAMED,
        unbatched="hgt_edges hgt",
    ),
    Row(
        "grid mapping, cell measures and ancillary variables",
        [
            named(
                "snow",
                ("time", "row", "col"),
                (6, 4, 4),
                attrs={"grid_mapping": "crs", "cell_measures": "area: cell_area", "ancillary_variables": "qc flags"},
            ),
            named("crs", (), ()),
            var("cell_area", row=4, col=4),
            var("qc", flag=7, member=50, level=3, time=6),
            var("flags", flag=7),
            time(6),
            *grid2d("lat", "lon", row=4, col=4),
        ],
        [("time", 6)],
        "referenced variables have no vote; row and col carry a 2-D latitude behind time",
        NAMED,
        unbatched="crs cell_area flags lat lon",
        partial="",
        either="qc",
    ),
    Row(
        "CESM history file",
        [
            named("TREFHT", ("time", "lat", "lon"), (12, 4, 8), unlimited=("time",)),
            named("co2vmr", ("time",), (12,), unlimited=("time",)),
            named("date", ("time",), (12,), unlimited=("time",)),
            var("gw", lat=4),
            time(12),
            *grid(n=4, m=8),
        ],
        [("time", 12)],
        "time leads every voter that has it, and can grow",
        UNLIMITED,
        unbatched="gw lat lon",
    ),
    Row(
        "ensemble",
        [var("t", member=4, time=6, lat=3, lon=5), time(6), coord("member", member=4), *grid()],
        [("member", 4), ("time", 6)],
        "the longer prefix",
        NAMED,
        unbatched="lat lon",
        partial="time member",
    ),
    Row(
        "ensemble with a series over time alone",
        [var("t", member=4, time=6, lat=3, lon=5), var("co2", time=6), time(6), *grid()],
        [("member", 4)],
        "co2 has time but does not start with (member, time)",
        NAMED,
        unbatched="co2 time lat lon",
    ),
    Row(
        "hindcasts by start and lead",
        [
            var("tp", init=5, lead=4, lat=3, lon=5),
            coord("init", kind="time", init=5),
            coord("lead", kind="time", lead=4),
            coord("valid_time", kind="time", init=5, lead=4),
            *grid(),
        ],
        [("init", 5), ("lead", 4)],
        "both lead the only voter and are no features",
        NAMED,
        unbatched="lat lon",
        partial="init lead",
    ),
    Row(
        "hindcasts of an index",
        [var("nino34", init=5, lead=4, member=3), coord("init", kind="time", init=5), coord("lead", lead=4)],
        [("init", 5)],
        "the prefix would swallow every axis of every voter, so only axis 0 is batch",
        NAMED,
        unbatched="lead",
    ),
    Row(
        "ensemble forecasts",
        [
            var("t2m", init_time=2, ensemble_member=3, lead_time=4, latitude=3, longitude=5),
            coord("init_time", kind="time", init_time=2),
            coord("lead_time", kind="time", lead_time=4),
            *grid("latitude", "longitude"),
        ],
        [("init_time", 2), ("ensemble_member", 3), ("lead_time", 4)],
        "three dims in front of the grid",
        NAMED,
        unbatched="latitude longitude",
        partial="init_time lead_time",
    ),
    Row(
        "forecasts on pressure levels",
        [
            var("z", time=6, prediction_timedelta=3, level=4, latitude=3, longitude=5),
            var("tp", time=6, prediction_timedelta=3, latitude=3, longitude=5),
            var("land", latitude=3, longitude=5),
            time(6),
            coord("prediction_timedelta", kind="time", prediction_timedelta=3),
            coord("level", level=4),
            *grid("latitude", "longitude"),
        ],
        [("time", 6), ("prediction_timedelta", 3)],
        "level is a well-known feature",
        NAMED,
        unbatched="land level latitude longitude",
        partial="time prediction_timedelta",
    ),
    Row(
        "climate models and scenarios",
        [var("tas", model=3, scenario=4, year=9), coord("model", kind="string", model=3)],
        [("model", 3)],
        "swallowed whole, so axis 0",
        NAMED,
    ),
    Row(
        "precipitation with longitude first",
        [var("precipitation", time=4, lon=5, lat=3), time(4), *grid()],
        [("time", 4)],
        "lon stops the prefix",
        NAMED,
        unbatched="lat lon",
    ),
    Row(
        "a projected forecast model",
        [var("t", time=4, y=3, x=5), time(4), *grid2d("latitude", "longitude", y=3, x=5)],
        [("time", 4)],
        "y and x are well known",
        NAMED,
        unbatched="latitude longitude",
    ),
    Row(
        "axis attributes on unusual names",
        [
            var("pr", time=4, rlat=3, rlon=5),
            time(4),
            coord("rlat", attrs={"axis": "Y"}, rlat=3),
            coord("rlon", attrs={"standard_name": "grid_longitude"}, rlon=5),
        ],
        [("time", 4)],
        "CF marks the dims",
        NAMED,
        unbatched="rlat rlon",
    ),
    Row(
        "a grid whose names only its CF attributes explain",
        [
            var("pr", quarter=4, breite=3, laenge=5),
            coord("quarter", quarter=4),
            coord("breite", attrs={"units": "degrees_north"}, breite=3),
            coord("laenge", attrs={"units": "degrees_east"}, laenge=5),
        ],
        [("quarter", 4)],
        "units mark latitude and longitude",
        NAMED,
        unbatched="breite laenge",
    ),
    Row(
        "one map",
        [var("orography", lat=3, lon=5), *grid()],
        [],
        "space leads, nothing is batch",
        NONE,
    ),
    Row(
        "one series",
        [var("t2m", time=9), var("wind", time=9), time(9)],
        [("time", 9)],
        "every axis is axis 0",
        NAMED,
    ),
]

OCEAN = [
    Row(
        "ROMS",
        [
            var("temp", ocean_time=4, s_rho=3, eta_rho=5, xi_rho=6),
            var("u", ocean_time=4, s_rho=3, eta_u=5, xi_u=5),
            var("w", ocean_time=4, s_w=4, eta_rho=5, xi_rho=6),
            var("zeta", ocean_time=4, eta_rho=5, xi_rho=6),
            var("h", eta_rho=5, xi_rho=6),
            var("mask_u", eta_u=5, xi_u=5),
            var("Cs_r", s_rho=3),
            named("hc", (), ()),
            time(4, "ocean_time"),
            *grid2d("lat_rho", "lon_rho", eta_rho=5, xi_rho=6),
        ],
        [("ocean_time", 4)],
        "s_rho, eta_* and xi_* are well known",
        NAMED,
        unbatched="h mask_u Cs_r hc lat_rho lon_rho",
    ),
    Row(
        "WRF",
        [
            var("T2", Time=4, south_north=3, west_east=5),
            var("U", Time=4, bottom_top=2, south_north=3, west_east_stag=6),
            var("ZNU", Time=4, bottom_top=2),
            var("Times", kind="string", Time=4),
            coord("XLAT", attrs={"units": "degree_north"}, Time=4, south_north=3, west_east=5),
            coord("XLONG", attrs={"units": "degree_east"}, Time=4, south_north=3, west_east=5),
        ],
        [("Time", 4)],
        "south_north*, west_east* and bottom_top* are well known",
        NAMED,
    ),
    Row(
        "NEMO",
        [
            var("votemper", time_counter=4, deptht=3, y=5, x=6),
            var("sossheig", time_counter=4, y=5, x=6),
            time(4, "time_counter"),
            coord("time_centered", kind="time", time_counter=4),
            coord("deptht", deptht=3),
            *grid2d("nav_lat", "nav_lon", y=5, x=6),
        ],
        [("time_counter", 4)],
        "dep* is well known",
        NAMED,
        unbatched="deptht nav_lat nav_lon",
    ),
    Row(
        "FESOM",
        [
            var("temp", time=4, nod2=9, nz1=3),
            var("area", nod2=9),
            var("zbar", nz=4),
            time(4),
            coord("nz1", nz1=3),
        ],
        [("time", 4)],
        "area has nod2 but does not start with (time, nod2)",
        NAMED,
        unbatched="area zbar nz1",
    ),
    Row(
        "MPAS",
        [
            var("temperature", Time=3, nCells=8, nVertLevels=4),
            var("zonalWind", Time=3, nCells=8, nVertLevels=4),
            var("areaCell", nCells=8),
            var("cellsOnEdge", nEdges=12, TWO=2),
            var("xtime", kind="string", Time=3),
        ],
        [("Time", 3)],
        "areaCell vetoes nCells",
        NAMED,
        unbatched="areaCell cellsOnEdge",
    ),
    Row(
        "ICON",
        [
            var("ta", time=3, height=4, ncells=8),
            var("clat_vertices", ncells=8, vertices=3),
            time(3),
            coord("clat", attrs=LATITUDE, ncells=8),
        ],
        [("time", 3)],
        "height is well known",
        NAMED,
        unbatched="clat_vertices clat",
    ),
    Row(
        "UGRID",
        [var("zeta", time=3, node=7), var("depth", node=7), var("element", nele=9, three=3), time(3)],
        [("time", 3)],
        "depth vetoes node; time is time-like, nele is not",
        NAMED,
        unbatched="depth element",
    ),
    Row(
        "a tripolar grid of unknown names",
        [
            var("sst", time=3, nlat=4, nlon=5),
            time(3),
            *grid2d("TLAT", "TLONG", nlat=4, nlon=5),
        ],
        [("time", 3)],
        "the dims of a 2-D latitude with time in front are a grid",
        NAMED,
        unbatched="TLAT TLONG",
    ),
    Row(
        "members of a tripolar grid",
        [var("sst", member=2, time=3, nlat=4, nlon=5), time(3), *grid2d("TLAT", "TLONG", nlat=4, nlon=5)],
        [("member", 2), ("time", 3)],
        "the grid stops the prefix, not its length",
        NAMED,
        unbatched="TLAT TLONG",
        partial="time",
    ),
    Row(
        "Argo profiles",
        [
            var("TEMP", N_PROF=5, N_LEVELS=9),
            var("PRES", N_PROF=5, N_LEVELS=9),
            var("CYCLE_NUMBER", N_PROF=5),
            var("PLATFORM_NUMBER", kind="string", N_PROF=5),
            coord("JULD", kind="time", N_PROF=5),
            coord("LATITUDE", attrs=LATITUDE, N_PROF=5),
            coord("LONGITUDE", attrs=LONGITUDE, N_PROF=5),
        ],
        [("N_PROF", 5)],
        "the cycle number has no levels; latitude of a profile is no dim of space",
        NAMED,
    ),
    Row(
        "Argo profiles of two arrays only",
        [var("TEMP", N_PROF=5, N_LEVELS=9), var("PSAL", N_PROF=5, N_LEVELS=9)],
        [("N_PROF", 5)],
        "swallowed whole, so axis 0",
        NAMED,
    ),
    Row(
        "ragged profiles",
        [
            var("temperature", obs=40),
            var("salinity", obs=40),
            var("rowSize", profile=4),
            coord("cast_time", kind="time", profile=4),
            coord("lat", attrs=LATITUDE, profile=4),
        ],
        [("obs", 40)],
        "both lead a voter of the highest rank; obs covers more elements",
        NAMED,
        unbatched="rowSize cast_time lat",
    ),
    Row(
        "stations with features",
        [
            var("water_level", station=4, time=9),
            var("elevation", station=4),
            coord("station_name", kind="string", station=4),
            coord("lat", attrs=LATITUDE, station=4),
            time(9),
        ],
        [("station", 4)],
        "elevation has no time",
        NAMED,
        unbatched="time",
    ),
    Row(
        "stations, time in front",
        [
            var("water_level", time=9, station=4),
            var("elevation", station=4),
            coord("lat", attrs=LATITUDE, station=4),
            time(9),
        ],
        [("time", 9)],
        "elevation vetoes station as a second dim",
        NAMED,
        unbatched="elevation lat",
    ),
]

SATELLITE = [
    Row(
        "a swath of one band",
        [
            var("brightness", scan=6, pixel=4),
            var("quality", scan=6),
            *grid2d("lat", "lon", scan=6, pixel=4),
        ],
        [("scan", 6)],
        "no voter has a dim in front of the 2-D latitude: scan lines",
        NAMED,
    ),
    Row(
        "a swath without line data",
        [var("brightness", scan=6, pixel=4), *grid2d("lat", "lon", scan=6, pixel=4)],
        [("scan", 6)],
        "swallowed whole, so axis 0",
        NAMED,
    ),
    Row(
        "a swath with channels last",
        [
            var("radiance", scan=6, pixel=4, channel=3),
            var("quality", scan=6),
            *grid2d("lat", "lon", scan=6, pixel=4),
        ],
        [("scan", 6)],
        "quality vetoes pixel; channel is a feature",
        NAMED,
    ),
    Row(
        "sea surface height of a wide swath",
        [
            var("ssh_karin", num_lines=6, num_pixels=4),
            var("cross_track_distance", num_lines=6, num_pixels=4),
            coord("time", kind="time", num_lines=6),
            *grid2d("latitude", "longitude", num_lines=6, num_pixels=4),
        ],
        [("num_lines", 6)],
        "swallowed whole, so axis 0",
        NAMED,
    ),
    Row(
        "an optical time series",
        [var("reflectance", time=4, band=3, y=5, x=6), time(4), coord("band", kind="string", band=3)],
        [("time", 4)],
        "band is well known",
        NAMED,
        unbatched="band",
    ),
    Row(
        "one optical scene",
        [var("reflectance", band=3, y=5, x=6), coord("band", kind="string", band=3)],
        [],
        "band leads, nothing is batch",
        NONE,
    ),
    Row(
        "a weather radar sweep",
        [
            var("DBZH", azimuth=36, range=9),
            var("VRADH", azimuth=36, range=9),
            coord("azimuth", azimuth=36),
            coord("range", range=9),
            coord("ray_time", kind="time", azimuth=36),
        ],
        [("azimuth", 36)],
        "swallowed whole, so axis 0",
        NAMED,
        unbatched="range",
    ),
    Row(
        "a weather radar volume",
        [
            var("DBZH", sweep=4, azimuth=36, range=9),
            var("fixed_angle", sweep=4),
            coord("range", range=9),
        ],
        [("sweep", 4)],
        "the angle has no azimuth",
        NAMED,
        unbatched="range",
    ),
    Row(
        "GPM-like groups of one swath",
        [
            named("NS/Latitude", ("nscan", "nray"), (13, 4), unlimited=("nscan",), attrs={"units": "degrees"}),
            named("NS/Longitude", ("nscan", "nray"), (13, 4), unlimited=("nscan",), attrs={"units": "degrees"}),
            named("NS/SLV/z", ("nscan", "nray", "nbin"), (13, 4, 9), unlimited=("nscan",)),
            named("NS/ScanTime/Hour", ("nscan",), (13,), unlimited=("nscan",)),
            raw("Info", 1, kind="string"),
        ],
        [("nscan", 13)],
        "the root takes what its children share",
        UNLIMITED,
        groups={"NS": (13,), "NS/SLV": (13,), "NS/ScanTime": (13,)},
        unbatched="Info",
    ),
    Row(
        "nowcasting patches",
        [
            var("satellite", sample=8, time=4, y=5, x=6),
            var("target", sample=8),
            coord("stamp", kind="time", sample=8, time=4),
        ],
        [("sample", 8)],
        "the target has no time",
        NAMED,
    ),
    Row(
        "power by region",
        [
            var("generation_mw", datetime_gmt=9, gsp_id=4),
            var("capacity_mwp", datetime_gmt=9, gsp_id=4),
            time(9, "datetime_gmt"),
            coord("gsp_id", kind="string", gsp_id=4),
        ],
        [("datetime_gmt", 9)],
        "swallowed whole, so axis 0",
        NAMED,
        unbatched="gsp_id",
    ),
    Row(
        "a five-dimensional cube",
        [
            var("dataset", time=2, universe=1, z=1, y=5, x=6),
            time(2),
            coord("universe", kind="string", universe=1),
            coord("z", z=1),
            coord("y", y=5),
            coord("x", x=6),
        ],
        [("time", 2), ("universe", 1)],
        "z is well known",
        NAMED,
        unbatched="z y x",
        partial="time universe",
    ),
]

IMAGES = [
    Row(
        "images and labels, unnamed",
        [raw("images", 20, 3, 8, 8), raw("labels", 20)],
        [(None, 20)],
        "the leading shape that all share",
        SHAPE,
    ),
    Row("images alone, unnamed", [raw("images", 20, 3, 8, 8)], [(None, 20)], "swallowed whole, so axis 0", SHAPE),
    Row(
        "images with names",
        [var("images", sample=20, c=3, h=8, w=8), var("labels", sample=20)],
        [("sample", 20)],
        "c is well known",
        NAMED,
    ),
    Row(
        "handwritten digits in one file",
        [
            raw("x_train", 60, 28, 28),
            raw("y_train", 60),
            raw("x_test", 10, 28, 28),
            raw("y_test", 10),
        ],
        [(None, 60)],
        "two arrays of 60 hold more than half of the elements",
        SHAPE,
        unbatched="x_test y_test",
    ),
    Row(
        "handwritten digits in two groups",
        [
            raw("train/x", 60, 28, 28),
            raw("train/y", 60),
            raw("test/x", 10, 28, 28),
            raw("test/y", 10),
        ],
        [],
        "the children of the root share nothing",
        NONE,
        groups={"train": (60,), "test": (10,)},
    ),
    Row(
        "cats and class names",
        [raw("test_set_x", 50, 64, 64, 3), raw("test_set_y", 50, 1), raw("list_classes", 2, kind="string")],
        [(None, 50)],
        "strings do not veto",
        SHAPE,
        unbatched="list_classes",
    ),
    Row(
        "OME-Zarr with time, and labels without",
        [
            named("0", ("t", "c", "z", "y", "x"), (2, 3, 8, 16, 16)),
            named("1", ("t", "c", "z", "y", "x"), (2, 3, 4, 8, 8)),
            named("labels/nuclei/0", ("z", "y", "x"), (8, 16, 16)),
        ],
        [("t", 2)],
        "c is well known; labels have no time",
        NAMED,
        unbatched="labels/nuclei/0",
    ),
    Row(
        "OME-Zarr of one stack",
        [named("0", ("c", "z", "y", "x"), (3, 8, 16, 16)), named("1", ("c", "z", "y", "x"), (3, 4, 8, 8))],
        [],
        "channels lead, nothing is batch",
        NONE,
    ),
    Row(
        "calcium imaging",
        [var("movie", frame=30, height=8, width=9), var("shift", frame=30, axis=2), var("mean", height=8, width=9)],
        [("frame", 30)],
        "height is well known",
        NAMED,
        unbatched="mean",
    ),
    Row(
        "video with sound",
        [var("video", frame=30, y=8, x=9, rgb=3), var("sound", sample=900, ear=2), var("exposure", frame=30)],
        [("frame", 30)],
        "rank 4 is the highest, and only frame leads it",
        NAMED,
        unbatched="sound",
    ),
    Row(
        "instances, images and an index are no space",
        [var("mask", instance=6, pixel=9), var("score", instance=6), var("embedding", image=4)],
        [("instance", 6)],
        "names are not guessed",
        NAMED,
        unbatched="embedding",
    ),
    Row(
        "EEG epochs",
        [var("eeg", epoch=12, channel=4, time=20), var("label", epoch=12), coord("channel", kind="string", channel=4)],
        [("epoch", 12)],
        "channel stops the prefix",
        NAMED,
        unbatched="channel",
    ),
    Row(
        "continuous EEG",
        [var("eeg", channel=4, time=20), coord("channel", kind="string", channel=4), time(20)],
        [],
        "channels lead, nothing is batch",
        NONE,
    ),
]

LEARNING = [
    Row(
        "a replay buffer with nested next",
        [
            raw("observation", 50, 4),
            raw("action", 50, 1),
            raw("done", 50, 1),
            raw("next/observation", 50, 4),
            raw("next/reward", 50, 1),
        ],
        [(None, 50)],
        "the leading shape that all share",
        SHAPE,
        groups={"next": (50,)},
    ),
    Row(
        "many environments",
        [raw("obs", 30, 4, 5), raw("action", 30, 4, 2), raw("reward", 30, 4)],
        [(None, 30), (None, 4)],
        "all share two axes, and obs has more",
        SHAPE,
    ),
    Row(
        "equal trailing sizes",
        [raw("obs", 6, 3), raw("act", 6, 3)],
        [(None, 6)],
        "swallowed whole, so axis 0",
        SHAPE,
    ),
    Row(
        "D4RL",
        [
            raw("observations", 60, 11),
            raw("actions", 60, 3),
            raw("rewards", 60),
            raw("terminals", 60),
            raw("metadata/algorithm", kind="string"),
            raw("metadata/iteration"),
            raw("metadata/policy/fc0/weight", 32, 11),
            raw("metadata/policy/fc0/bias", 32),
        ],
        [(None, 60)],
        "nested groups do not vote for their parent, and do not fit",
        SHAPE,
        unbatched="metadata/algorithm metadata/iteration metadata/policy/fc0/weight metadata/policy/fc0/bias",
    ),
    Row(
        "Minari, small observations",
        [
            raw("episode_0/observations", 4, 2),
            raw("episode_0/actions", 3, 1),
            raw("episode_0/rewards", 3),
            raw("episode_0/terminations", 3),
            raw("episode_0/truncations", 3),
            raw("episode_1/observations", 9, 2),
            raw("episode_1/actions", 8, 1),
            raw("episode_1/rewards", 8),
            raw("episode_1/terminations", 8),
            raw("episode_1/truncations", 8),
        ],
        [],
        "episodes share nothing; in one, a minority (the extra observation) cannot veto",
        NONE,
        groups={"episode_0": (3,), "episode_1": (8,)},
        unbatched="episode_0/observations episode_1/observations",
    ),
    Row(
        "Minari, wide observations",
        [
            raw("observations", 4, 17),
            raw("actions", 3, 6),
            raw("rewards", 3),
            raw("terminations", 3),
            raw("truncations", 3),
        ],
        [],
        "27 of 95 elements are no majority",
        NONE,
    ),
    Row(
        "robomimic",
        [
            raw("data/demo_0/actions", 3, 7),
            raw("data/demo_0/dones", 3),
            raw("data/demo_0/obs/eef", 3, 3),
            raw("data/demo_1/actions", 5, 7),
            raw("data/demo_1/dones", 5),
            raw("data/demo_1/obs/eef", 5, 3),
            raw("mask/train", 2, kind="string"),
        ],
        [],
        "each demonstration has its own length",
        NONE,
        groups={"data": (), "data/demo_0": (3,), "data/demo_0/obs": (3,), "data/demo_1": (5,), "mask": ()},
    ),
    Row(
        "Isaac Lab",
        [
            raw("data/demo_0/actions", 236, 7),
            raw("data/demo_0/obs/joint_pos", 236, 9),
            raw("data/demo_0/initial_state/robot/joint_position", 1, 9),
            raw("data/demo_1/actions", 201, 7),
            raw("data/demo_1/obs/joint_pos", 201, 9),
        ],
        [],
        "the initial state does not fit its demonstration",
        NONE,
        groups={"data/demo_0": (236,), "data/demo_0/obs": (236,), "data/demo_1": (201,)},
        unbatched="data/demo_0/initial_state/robot/joint_position",
    ),
    Row(
        "diffusion policy",
        [
            raw("data/img", 70, 4, 4, 3),
            raw("data/state", 70, 5),
            raw("data/action", 70, 2),
            raw("meta/episode_ends", 2),
        ],
        [],
        "rows and episodes share nothing",
        NONE,
        groups={"data": (70,), "meta": (2,)},
    ),
    Row(
        "LeRobot-like columns",
        [
            raw("observation.state", 40, 14),
            raw("action", 40, 14),
            raw("timestamp", 40),
            raw("episode_index", 40),
            raw("frame_index", 40),
            raw("next.done", 40),
            raw("task", 40, kind="string"),
        ],
        [(None, 40)],
        "one row per frame",
        SHAPE,
    ),
    Row(
        "forces with mean and spread",
        [
            raw("data", 19069, 12),
            raw("label", 19069, 6),
            raw("mean_X", 12),
            raw("std_X", 12),
            raw("mean_Y", 6),
            raw("std_Y", 6),
        ],
        [(None, 19069)],
        "a minority cannot veto",
        SHAPE,
        unbatched="mean_X std_X mean_Y std_Y",
    ),
    Row(
        "anemoi",
        [
            raw("data", 40, 2, 1, 5),
            raw("dates", 40, kind="time"),
            raw("longitudes", 5),
            raw("mean", 2),
            named("latitudes", ("values",), (5,)),
        ],
        [(None, 40)],
        "data and dates share axis 0 and hold most of the elements",
        SHAPE,
        unbatched="longitudes mean latitudes",
    ),
    Row(
        "tokens",
        [raw("input_ids", 9, 16), raw("attention_mask", 9, 16), raw("labels", 9)],
        [(None, 9)],
        "labels have no second axis",
        SHAPE,
    ),
    Row(
        "a graph",
        [raw("x", 34, 7), raw("edge_index", 2, 78), raw("edge_attr", 78, 3), raw("y", 1)],
        [],
        "no leading size is shared",
        NONE,
    ),
    Row(
        "AnnData",
        [
            raw("X/data", 239),
            raw("X/indices", 239),
            raw("X/indptr", 31),
            raw("obs/_index", 30, kind="string"),
            raw("obs/n_genes", 30),
            raw("obs/total", 30),
            raw("obsm/pca", 30, 5),
            raw("obsm/umap", 30, 2),
            raw("var/_index", 20, kind="string"),
            raw("var/mean", 20),
            raw("uns/resolution"),
        ],
        [],
        "observations and variables share nothing",
        NONE,
        groups={"obs": (30,), "obsm": (30,), "var": (20,)},
        group_attrs={("X",): {"encoding-type": "csr_matrix", "shape": [30, 20]}},
        either="X/data X/indices X/indptr",
    ),
    Row(
        "a table of trials",
        [
            raw("id", 41),
            raw("start_time", 41),
            raw("stop_time", 41),
            raw("outcome", 41, kind="string"),
        ],
        [(None, 41)],
        "one row per trial",
        SHAPE,
    ),
    Row(
        "penguins",
        [
            var("bill_length", row=33),
            var("body_mass", row=33),
            var("species", kind="string", row=33),
            var("island", kind="string", row=33),
        ],
        [("row", 33)],
        "one row per penguin",
        NAMED,
    ),
    Row(
        "a tensordict opened as a Dataset",
        [var("obs", batch_0=6, dim_3=3), var("next/obs", batch_0=6, dim_3=3), var("done", batch_0=6)],
        [("batch_0", 6)],
        "dim_<size> is a feature",
        NAMED,
        groups={"next": (6,)},
        other_case=False,
    ),
]

ODD = [
    Row("nothing", [], [], "an empty store", NONE),
    Row("scalars", [raw("lr"), raw("steps"), raw("name", kind="string")], [], "scalars have no vote", NONE),
    Row("one column of text", [var("text", kind="string", row=5)], [], "strings have no vote", NONE),
    Row("one series of datetimes", [var("when", kind="time", row=5)], [], "datetimes have no vote", NONE),
    Row("coordinates alone", [time(5), *grid()], [], "coordinates have no vote", NONE),
    Row("one unnamed array", [raw("x", 10, 3)], [(None, 10)], "axis 0", SHAPE),
    Row("one unnamed vector", [raw("x", 10)], [(None, 10)], "axis 0", SHAPE),
    Row("one named array", [var("x", t=10, f=3)], [("t", 10)], "axis 0", NAMED),
    Row(
        "equal sizes by accident, named",
        [var("u", time=4, cell=4), var("v", time=4), var("cell_area", cell=4)],
        [("time", 4)],
        "names, not sizes",
        NAMED,
        unbatched="cell_area",
    ),
    Row(
        "equal sizes by accident, unnamed",
        [raw("u", 4, 4), raw("v", 4), raw("w", 4)],
        [(None, 4)],
        "nothing tells the axes apart, and all lead with 4",
        SHAPE,
    ),
    Row(
        "unrelated unnamed arrays",
        [raw("x", 3, 3), raw("y", 3), raw("z", 5, 3)],
        [],
        "12 of 27 elements are no majority",
        NONE,
    ),
    Row(
        "a dim twice, behind the batch",
        [named("cov", ("time", "site", "site"), (2, 3, 3)), named("mu", ("time", "site"), (2, 3))],
        [("time", 2)],
        "the prefix stops before a dim that one array repeats",
        NAMED,
    ),
    Row("a dim twice, alone", [named("cov", ("site", "site"), (3, 3))], [], "the repeated dim leads", NONE),
    Row(
        "null names",
        [named("a", ("time", None), (4, 2)), named("b", ("time", None), (4, 3)), named("c", (), ())],
        [("time", 4)],
        "axes without a name do not count",
        NAMED,
        unbatched="c",
    ),
    Row(
        "an unlimited dim is preferred to a larger one",
        [
            named("a", ("rec", "p"), (4, 2), unlimited=("rec",)),
            named("c", ("rec",), (4,), unlimited=("rec",)),
            var("b", sensor=90, q=2),
            var("d", sensor=90),
        ],
        [("rec", 4)],
        "of several: unlimited first",
        UNLIMITED,
        unbatched="b d",
    ),
    Row(
        "a time-like dim is preferred to a larger one",
        [var("a", time=4, p=2), var("c", time=4), var("b", sensor=90, q=2), var("d", sensor=90), time(4)],
        [("time", 4)],
        "of several: time-like before more elements",
        NAMED,
        unbatched="b d",
    ),
    Row(
        "a dim is time-like by its coordinate",
        [
            var("a", hour=4, p=2),
            var("c", hour=4),
            var("b", sensor=90, q=2),
            var("d", sensor=90),
            coord("hour", kind="time", hour=4),
        ],
        [("hour", 4)],
        "of several: time-like before more elements",
        NAMED,
        unbatched="b d",
    ),
    Row(
        "the dim of more elements is preferred",
        [var("a", run=4, p=2), var("c", run=4), var("b", sensor=90, q=2), var("d", sensor=90)],
        [("sensor", 90)],
        "of several: more elements",
        NAMED,
        unbatched="a c",
    ),
    Row(
        "two dims that nothing but their names tells apart",
        [var("a", beta=4, p=2), var("c", beta=4), var("b", alpha=4, q=2), var("d", alpha=4)],
        [("alpha", 4)],
        "of several: by name",
        NAMED,
        unbatched="a c",
    ),
    Row(
        "statistics in a nested group",
        [
            var("obs", row=20, f=3),
            var("reward", row=20),
            var("stats/mean", f=3),
            var("stats/count"),
            var("next/obs", row=20, f=3),
        ],
        [("row", 20)],
        "nested groups follow where they fit and are unbatched where they do not",
        NAMED,
        unbatched="stats/mean stats/count",
        groups={"next": (20,)},
    ),
    Row(
        "groups that share their batch under an empty root",
        [var("left/img", time=9, y=4, x=4), var("right/img", time=9, y=4, x=4), time(9)],
        [("time", 9)],
        "the root takes what all its children share",
        NAMED,
        groups={"left": (9,), "right": (9,)},
    ),
]

ROWS = [*WEATHER, *OCEAN, *SATELLITE, *IMAGES, *LEARNING, *ODD]
