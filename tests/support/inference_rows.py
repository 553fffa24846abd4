"""Datasets modelled on well-known ones, described array by array, and what their batch is.

The answers follow from the rules of batch inference (design, section 6), not from the implementation; `why` says which.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xarray_tensordict.core.model import ArrayInfo, EvidenceKind, Kind, Role

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

CF = {"lat}": LATITUDE, "lon}": LONGITUDE}


def rows(text: str) -> list[Row]:
    """Rows as text, one below the other.

    The first line has the name and the reason. Then follow the arrays, separated by ";": ``t2m time=10 lat=3``; ``=3`` is an
    axis without a name, ``time=10+`` can grow, ``@lat`` is a coordinate (``@@lat`` one without an index), ``label:string`` has
    another kind, ``~x`` holds floats, and attributes stand behind it, ``{lat}`` and ``{lon}`` for those of CF; ``grid lat lon``
    are two coordinates. Behind the last "->" is the batch, with the evidence where it is no shared named dim, and what is not
    batched; ``lower case`` where a name is only known in lower case.
    """
    return [_row(block) for block in re.split(r"\n(?=\S)", text.strip("\n"))]


def _row(block: str) -> Row:
    name, text = re.split(r"\s+-- ", block, maxsplit=1)
    why, text = text.split("\n", 1)
    arrays, _, answer = " ".join(text.split()).rpartition("-> ")
    batch, *rest = answer.split("; ")
    names, _, evidence = batch.partition(" [")
    found: dict[str, Any] = {word: value for word, _, value in (each.partition(" ") for each in rest)}
    groups, group_attrs = (json.loads(found.get(word, "{}")) for word in ("groups", "group_attrs"))
    return Row(
        name,
        [info for text in filter(None, arrays.strip().split("; ")) for info in _arrays(text)],
        [] if names == "none" else [_axis(axis)[:2] for axis in names.split()],
        why,
        evidence.removesuffix("]") or ("none" if names == "none" else NAMED),  # type: ignore[arg-type]
        found.get("unbatched", ""),
        found.get("partial", ""),
        {path: tuple(sizes) for path, sizes in groups.items()},
        {key_of(path): {name: _value(value) for name, value in attrs.items()} for path, attrs in group_attrs.items()},
        found.get("either", ""),
        "lower" not in found,
    )


def _value(text: Any) -> Any:
    is_bytes = isinstance(text, str) and text.startswith("bytes:")
    return text.removeprefix("bytes:").encode("latin-1") if is_bytes else text


def _axis(text: str) -> tuple[str | None, int, bool]:
    name, _, size = text.rpartition("=")
    return name or None, int(size.rstrip("+")), size.endswith("+")


def _arrays(text: str) -> list[ArrayInfo]:
    words, _, attrs = text.partition(" {")
    path, *sizes = words.split()
    if path == "grid":
        return grid(*sizes)
    axes = [_axis(size) for size in sizes]
    path, _, kind = path.partition(":")
    is_float, path = path[0] == "~", path.removeprefix("~")
    key = key_of(path.lstrip("@"))
    dims = tuple(name for name, _, _ in axes)
    role: Any = ("index" if dims == key[-1:] and path[1] != "@" else "coord") if path[0] == "@" else "data"
    grows = frozenset(number for number, (_, _, can) in enumerate(axes) if can)
    given = CF.get(attrs) or (json.loads("{" + attrs) if attrs else {})
    return [
        ArrayInfo(key, tuple(size for _, size, _ in axes), kind or "numeric", dims, role, grows, given, not is_float)
    ]  # type: ignore[arg-type]


WEATHER = rows("""
air_temperature -- lat and lon are space
    air time=10 lat=3 lon=5; @time:time time=10; grid lat lon -> time=10; unbatched lat lon
ERA5 with a land mask -- the mask has no dim of the prefix
    t2m time=10 latitude=3 longitude=5; lsm latitude=3 longitude=5; @time:time time=10; grid latitude longitude
    -> time=10; unbatched lsm latitude longitude
CMIP6 with bounds -- bounds are referenced and have no vote
    tas time=12 lat=3 lon=5; time_bnds:time time=12 bnds=2; lat_bnds lat=3 bnds=2; lon_bnds lon=5 bnds=2; @time:time
    time=12 {"bounds": "time_bnds"}; @lat lat=3 {"standard_name": "latitude", "units": "degrees_north", "bounds":
    "lat_bnds"}; @lon lon=5 {"standard_name": "longitude", "units": "degrees_east", "bounds": "lon_bnds"}; @height
    -> time=12; unbatched lat_bnds lon_bnds lat lon height
bounds of higher rank than the data -- what CF references has no vote, so the data has the highest rank
    tas time=12; hgt_edges hgt=4 edge=2; @time:time time=12; @hgt hgt=4 {"bounds": "hgt_edges"}
    -> time=12; unbatched hgt_edges hgt
grid mapping, cell measures and ancillary variables -- referenced variables have no vote; row and col carry a 2-D latitude behind time
    snow time=6 row=4 col=4 {"grid_mapping": "crs", "cell_measures": "area: cell_area", "ancillary_variables": "qc
    flags"}; crs; cell_area row=4 col=4; qc flag=7 member=50 level=3 time=6; flags flag=7; @time:time time=6; @lat
    row=4 col=4 {lat}; @lon row=4 col=4 {lon}
    -> time=6; unbatched crs cell_area flags lat lon; either qc
CESM history file -- time leads every voter that has it, and can grow
    TREFHT time=12+ lat=4 lon=8; co2vmr time=12+; date time=12+; gw lat=4; @time:time time=12; @lat lat=4 {lat};
    @lon lon=8 {lon}
    -> time=12 [unlimited dim]; unbatched gw lat lon
ensemble -- the longer prefix
    t member=4 time=6 lat=3 lon=5; @time:time time=6; @member member=4; grid lat lon
    -> member=4 time=6; unbatched lat lon; partial time member
ensemble with a series over time alone -- co2 has time but does not start with (member, time)
    t member=4 time=6 lat=3 lon=5; co2 time=6; @time:time time=6; grid lat lon
    -> member=4; unbatched co2 time lat lon
hindcasts by start and lead -- both lead the only voter and are no features
    tp init=5 lead=4 lat=3 lon=5; @init:time init=5; @lead:time lead=4; @valid_time:time init=5 lead=4; grid lat lon
    -> init=5 lead=4; unbatched lat lon; partial init lead
hindcasts of an index -- the prefix would swallow every axis of every voter, so only axis 0 is batch
    nino34 init=5 lead=4 member=3; @init:time init=5; @lead lead=4 -> init=5; unbatched lead
ensemble forecasts -- three dims in front of the grid
    t2m init_time=2 ensemble_member=3 lead_time=4 latitude=3 longitude=5; @init_time:time init_time=2;
    @lead_time:time lead_time=4; grid latitude longitude
    -> init_time=2 ensemble_member=3 lead_time=4; unbatched latitude longitude; partial init_time lead_time
forecasts on pressure levels -- level is a well-known feature
    z time=6 prediction_timedelta=3 level=4 latitude=3 longitude=5; tp time=6 prediction_timedelta=3 latitude=3
    longitude=5; land latitude=3 longitude=5; @time:time time=6; @prediction_timedelta:time prediction_timedelta=3;
    @level level=4; grid latitude longitude
    -> time=6 prediction_timedelta=3; unbatched land level latitude longitude; partial time prediction_timedelta
climate models and scenarios -- swallowed whole, so axis 0
    tas model=3 scenario=4 year=9; @model:string model=3 -> model=3
precipitation with longitude first -- lon stops the prefix
    precipitation time=4 lon=5 lat=3; @time:time time=4; grid lat lon -> time=4; unbatched lat lon
a projected forecast model -- y and x are well known
    t time=4 y=3 x=5; @time:time time=4; @latitude y=3 x=5 {lat}; @longitude y=3 x=5 {lon}
    -> time=4; unbatched latitude longitude
axis attributes on unusual names -- CF marks the dims
    pr time=4 rlat=3 rlon=5; @time:time time=4; @rlat rlat=3 {"axis": "Y"}; @rlon rlon=5 {"standard_name":
    "grid_longitude"}
    -> time=4; unbatched rlat rlon
a grid whose names only its CF attributes explain -- units mark latitude and longitude
    pr quarter=4 breite=3 laenge=5; @quarter quarter=4; @breite breite=3 {"units": "degrees_north"}; @laenge
    laenge=5 {"units": "degrees_east"}
    -> quarter=4; unbatched breite laenge
one map -- space leads, nothing is batch
    orography lat=3 lon=5; grid lat lon -> none
one series -- every axis is axis 0
    t2m time=9; wind time=9; @time:time time=9 -> time=9
""")

OCEAN = rows("""
ROMS -- s_rho, eta_* and xi_* are well known
    temp ocean_time=4 s_rho=3 eta_rho=5 xi_rho=6; u ocean_time=4 s_rho=3 eta_u=5 xi_u=5; w ocean_time=4 s_w=4
    eta_rho=5 xi_rho=6; zeta ocean_time=4 eta_rho=5 xi_rho=6; h eta_rho=5 xi_rho=6; mask_u eta_u=5 xi_u=5; Cs_r
    s_rho=3; hc; @ocean_time:time ocean_time=4; @lat_rho eta_rho=5 xi_rho=6 {lat}; @lon_rho eta_rho=5 xi_rho=6 {lon}
    -> ocean_time=4; unbatched h mask_u Cs_r hc lat_rho lon_rho
WRF -- south_north*, west_east* and bottom_top* are well known
    T2 Time=4 south_north=3 west_east=5; U Time=4 bottom_top=2 south_north=3 west_east_stag=6; ZNU Time=4
    bottom_top=2; Times:string Time=4; @XLAT Time=4 south_north=3 west_east=5 {"units": "degree_north"}; @XLONG
    Time=4 south_north=3 west_east=5 {"units": "degree_east"}
    -> Time=4
NEMO -- dep* is well known
    votemper time_counter=4 deptht=3 y=5 x=6; sossheig time_counter=4 y=5 x=6; @time_counter:time time_counter=4;
    @time_centered:time time_counter=4; @deptht deptht=3; @nav_lat y=5 x=6 {lat}; @nav_lon y=5 x=6 {lon}
    -> time_counter=4; unbatched deptht nav_lat nav_lon
FESOM -- area has nod2 but does not start with (time, nod2)
    temp time=4 nod2=9 nz1=3; area nod2=9; zbar nz=4; @time:time time=4; @nz1 nz1=3
    -> time=4; unbatched area zbar nz1
MPAS -- areaCell vetoes nCells
    temperature Time=3 nCells=8 nVertLevels=4; zonalWind Time=3 nCells=8 nVertLevels=4; areaCell nCells=8;
    cellsOnEdge nEdges=12 TWO=2; xtime:string Time=3
    -> Time=3; unbatched areaCell cellsOnEdge
ICON -- height is well known
    ta time=3 height=4 ncells=8; clat_vertices ncells=8 vertices=3; @time:time time=3; @clat ncells=8 {lat}
    -> time=3; unbatched clat_vertices clat
UGRID -- depth vetoes node; time is time-like, nele is not
    zeta time=3 node=7; depth node=7; element nele=9 three=3; @time:time time=3 -> time=3; unbatched depth element
a tripolar grid of unknown names -- the dims of a 2-D latitude with time in front are a grid
    sst time=3 nlat=4 nlon=5; @time:time time=3; @TLAT nlat=4 nlon=5 {lat}; @TLONG nlat=4 nlon=5 {lon}
    -> time=3; unbatched TLAT TLONG
members of a tripolar grid -- the grid stops the prefix, not its length
    sst member=2 time=3 nlat=4 nlon=5; @time:time time=3; @TLAT nlat=4 nlon=5 {lat}; @TLONG nlat=4 nlon=5 {lon}
    -> member=2 time=3; unbatched TLAT TLONG; partial time
Argo profiles -- the cycle number has no levels; latitude of a profile is no dim of space
    TEMP N_PROF=5 N_LEVELS=9; PRES N_PROF=5 N_LEVELS=9; CYCLE_NUMBER N_PROF=5; PLATFORM_NUMBER:string N_PROF=5;
    @JULD:time N_PROF=5; @LATITUDE N_PROF=5 {lat}; @LONGITUDE N_PROF=5 {lon}
    -> N_PROF=5
Argo profiles of two arrays only -- swallowed whole, so axis 0
    TEMP N_PROF=5 N_LEVELS=9; PSAL N_PROF=5 N_LEVELS=9 -> N_PROF=5
ragged profiles -- both lead a voter of the highest rank; obs covers more elements
    temperature obs=40; salinity obs=40; rowSize profile=4; @cast_time:time profile=4; @lat profile=4 {lat}
    -> obs=40; unbatched rowSize cast_time lat
stations with features -- elevation has no time
    water_level station=4 time=9; elevation station=4; @station_name:string station=4; @lat station=4 {lat};
    @time:time time=9
    -> station=4; unbatched time
stations, time in front -- elevation vetoes station as a second dim
    water_level time=9 station=4; elevation station=4; @lat station=4 {lat}; @time:time time=9
    -> time=9; unbatched elevation lat
""")

SATELLITE = rows("""
a swath of one band -- no voter has a dim in front of the 2-D latitude: scan lines
    brightness scan=6 pixel=4; quality scan=6; @lat scan=6 pixel=4 {lat}; @lon scan=6 pixel=4 {lon} -> scan=6
a swath without line data -- swallowed whole, so axis 0
    brightness scan=6 pixel=4; @lat scan=6 pixel=4 {lat}; @lon scan=6 pixel=4 {lon} -> scan=6
a swath with channels last -- quality vetoes pixel; channel is a feature
    radiance scan=6 pixel=4 channel=3; quality scan=6; @lat scan=6 pixel=4 {lat}; @lon scan=6 pixel=4 {lon}
    -> scan=6
sea surface height of a wide swath -- swallowed whole, so axis 0
    ssh_karin num_lines=6 num_pixels=4; cross_track_distance num_lines=6 num_pixels=4; @time:time num_lines=6;
    @latitude num_lines=6 num_pixels=4 {lat}; @longitude num_lines=6 num_pixels=4 {lon}
    -> num_lines=6
an optical time series -- band is well known
    reflectance time=4 band=3 y=5 x=6; @time:time time=4; @band:string band=3 -> time=4; unbatched band
one optical scene -- band leads, nothing is batch
    reflectance band=3 y=5 x=6; @band:string band=3 -> none
a weather radar sweep -- swallowed whole, so axis 0
    DBZH azimuth=36 range=9; VRADH azimuth=36 range=9; @azimuth azimuth=36; @range range=9; @ray_time:time
    azimuth=36
    -> azimuth=36; unbatched range
a weather radar volume -- the angle has no azimuth
    DBZH sweep=4 azimuth=36 range=9; fixed_angle sweep=4; @range range=9 -> sweep=4; unbatched range
GPM-like groups of one swath -- the root takes what its children share
    NS/Latitude nscan=13+ nray=4 {"units": "degrees"}; NS/Longitude nscan=13+ nray=4 {"units": "degrees"}; NS/SLV/z
    nscan=13+ nray=4 nbin=9; NS/ScanTime/Hour nscan=13+; Info:string =1
    -> nscan=13 [unlimited dim]; unbatched Info; groups {"NS": [13], "NS/SLV": [13], "NS/ScanTime": [13]}
nowcasting patches -- the target has no time
    satellite sample=8 time=4 y=5 x=6; target sample=8; @stamp:time sample=8 time=4 -> sample=8
power by region -- swallowed whole, so axis 0
    generation_mw datetime_gmt=9 gsp_id=4; capacity_mwp datetime_gmt=9 gsp_id=4; @datetime_gmt:time datetime_gmt=9;
    @gsp_id:string gsp_id=4
    -> datetime_gmt=9; unbatched gsp_id
a five-dimensional cube -- z is well known
    dataset time=2 universe=1 z=1 y=5 x=6; @time:time time=2; @universe:string universe=1; @z z=1; @y y=5; @x x=6
    -> time=2 universe=1; unbatched z y x; partial time universe
""")

IMAGES = rows("""
images and labels, unnamed -- the leading shape that all share
    images =20 =3 =8 =8; labels =20 -> =20 [shared shape]
images alone, unnamed -- swallowed whole, so axis 0
    images =20 =3 =8 =8 -> =20 [shared shape]
images with names -- c is well known
    images sample=20 c=3 h=8 w=8; labels sample=20 -> sample=20
handwritten digits in one file -- two arrays of 60 hold more than half of the elements
    x_train =60 =28 =28; y_train =60; x_test =10 =28 =28; y_test =10 -> =60 [shared shape]; unbatched x_test y_test
handwritten digits in two groups -- the children of the root share nothing
    train/x =60 =28 =28; train/y =60; test/x =10 =28 =28; test/y =10 -> none; groups {"train": [60], "test": [10]}
cats and class names -- strings do not veto
    test_set_x =50 =64 =64 =3; test_set_y =50 =1; list_classes:string =2
    -> =50 [shared shape]; unbatched list_classes
OME-Zarr with time, and labels without -- c is well known; labels have no time
    0 t=2 c=3 z=8 y=16 x=16; 1 t=2 c=3 z=4 y=8 x=8; labels/nuclei/0 z=8 y=16 x=16 -> t=2; unbatched labels/nuclei/0
OME-Zarr of one stack -- channels lead, nothing is batch
    0 c=3 z=8 y=16 x=16; 1 c=3 z=4 y=8 x=8 -> none
calcium imaging -- height is well known
    movie frame=30 height=8 width=9; shift frame=30 axis=2; mean height=8 width=9 -> frame=30; unbatched mean
video with sound -- rank 4 is the highest, and only frame leads it
    video frame=30 y=8 x=9 rgb=3; sound sample=900 ear=2; exposure frame=30 -> frame=30; unbatched sound
instances, images and an index are no space -- names are not guessed
    mask instance=6 pixel=9; score instance=6; embedding image=4 -> instance=6; unbatched embedding
EEG epochs -- channel stops the prefix
    eeg epoch=12 channel=4 time=20; label epoch=12; @channel:string channel=4 -> epoch=12; unbatched channel
continuous EEG -- channels lead, nothing is batch
    eeg channel=4 time=20; @channel:string channel=4; @time:time time=20 -> none
""")

LEARNING = rows("""
a replay buffer with nested next -- the leading shape that all share
    observation =50 =4; action =50 =1; done =50 =1; next/observation =50 =4; next/reward =50 =1
    -> =50 [shared shape]; groups {"next": [50]}
many environments -- all share two axes, and obs has more
    obs =30 =4 =5; action =30 =4 =2; reward =30 =4 -> =30 =4 [shared shape]
equal trailing sizes -- swallowed whole, so axis 0
    obs =6 =3; act =6 =3 -> =6 [shared shape]
D4RL -- nested groups do not vote for their parent, and do not fit
    observations =60 =11; actions =60 =3; rewards =60; terminals =60; metadata/algorithm:string; metadata/iteration;
    metadata/policy/fc0/weight =32 =11; metadata/policy/fc0/bias =32
    -> =60 [shared shape]; unbatched metadata/algorithm metadata/iteration metadata/policy/fc0/weight
    metadata/policy/fc0/bias
Minari, small observations -- episodes share nothing; in one, a minority (the extra observation) cannot veto
    episode_0/observations =4 =2; episode_0/actions =3 =1; episode_0/rewards =3; episode_0/terminations =3;
    episode_0/truncations =3; episode_1/observations =9 =2; episode_1/actions =8 =1; episode_1/rewards =8;
    episode_1/terminations =8; episode_1/truncations =8
    -> none; unbatched episode_0/observations episode_1/observations; groups {"episode_0": [3], "episode_1": [8]}
Minari, wide observations -- 27 of 95 elements are no majority
    observations =4 =17; actions =3 =6; rewards =3; terminations =3; truncations =3 -> none
robomimic -- each demonstration has its own length
    data/demo_0/actions =3 =7; data/demo_0/dones =3; data/demo_0/obs/eef =3 =3; data/demo_1/actions =5 =7;
    data/demo_1/dones =5; data/demo_1/obs/eef =5 =3; mask/train:string =2
    -> none; groups {"data": [], "data/demo_0": [3], "data/demo_0/obs": [3], "data/demo_1": [5], "mask": []}
Isaac Lab -- the initial state does not fit its demonstration
    data/demo_0/actions =236 =7; data/demo_0/obs/joint_pos =236 =9; data/demo_0/initial_state/robot/joint_position
    =1 =9; data/demo_1/actions =201 =7; data/demo_1/obs/joint_pos =201 =9
    -> none; unbatched data/demo_0/initial_state/robot/joint_position; groups {"data/demo_0": [236],
    "data/demo_0/obs": [236], "data/demo_1": [201]}
diffusion policy -- rows and episodes share nothing
    data/img =70 =4 =4 =3; data/state =70 =5; data/action =70 =2; meta/episode_ends =2
    -> none; groups {"data": [70], "meta": [2]}
LeRobot-like columns -- one row per frame
    observation.state =40 =14; action =40 =14; timestamp =40; episode_index =40; frame_index =40; next.done =40;
    task:string =40
    -> =40 [shared shape]
forces with mean and spread -- a minority cannot veto
    data =19069 =12; label =19069 =6; mean_X =12; std_X =12; mean_Y =6; std_Y =6
    -> =19069 [shared shape]; unbatched mean_X std_X mean_Y std_Y
anemoi -- data and dates share axis 0 and hold most of the elements
    data =40 =2 =1 =5; dates:time =40; longitudes =5; mean =2; latitudes values=5
    -> =40 [shared shape]; unbatched longitudes mean latitudes
tokens -- labels have no second axis
    input_ids =9 =16; attention_mask =9 =16; labels =9 -> =9 [shared shape]
a graph -- no leading size is shared
    x =34 =7; edge_index =2 =78; edge_attr =78 =3; y =1 -> none
AnnData -- observations and variables share nothing
    X/data =239; X/indices =239; X/indptr =31; obs/_index:string =30; obs/n_genes =30; obs/total =30; obsm/pca =30
    =5; obsm/umap =30 =2; var/_index:string =20; var/mean =20; uns/resolution
    -> none; either X/data X/indices X/indptr; groups {"obs": [30], "obsm": [30], "var": [20]}; group_attrs {"X":
    {"encoding-type": "csr_matrix", "shape": [30, 20]}}
a table of trials -- one row per trial
    id =41; start_time =41; stop_time =41; outcome:string =41 -> =41 [shared shape]
penguins -- one row per penguin
    bill_length row=33; body_mass row=33; species:string row=33; island:string row=33 -> row=33
a tensordict opened as a Dataset -- dim_<size> is a feature
    obs batch_0=6 dim_3=3; next/obs batch_0=6 dim_3=3; done batch_0=6 -> batch_0=6; groups {"next": [6]}; lower case
""")

ODD = rows("""
nothing -- an empty store
     -> none
scalars -- scalars have no vote
    lr; steps; name:string -> none
one column of text -- strings have no vote
    text:string row=5 -> none
one series of datetimes -- datetimes have no vote
    when:time row=5 -> none
coordinates alone -- coordinates have no vote
    @time:time time=5; grid lat lon -> none
one unnamed array -- axis 0
    x =10 =3 -> =10 [shared shape]
one unnamed vector -- axis 0
    x =10 -> =10 [shared shape]
one named array -- axis 0
    x t=10 f=3 -> t=10
equal sizes by accident, named -- names, not sizes
    u time=4 cell=4; v time=4; cell_area cell=4 -> time=4; unbatched cell_area
equal sizes by accident, unnamed -- nothing tells the axes apart, and all lead with 4
    u =4 =4; v =4; w =4 -> =4 [shared shape]
unrelated unnamed arrays -- 12 of 27 elements are no majority
    x =3 =3; y =3; z =5 =3 -> none
a dim twice, behind the batch -- the prefix stops before a dim that one array repeats
    cov time=2 site=3 site=3; mu time=2 site=3 -> time=2
a dim twice, alone -- the repeated dim leads
    cov site=3 site=3 -> none
null names -- axes without a name do not count
    a time=4 =2; b time=4 =3; c -> time=4; unbatched c
an unlimited dim is preferred to a larger one -- of several: unlimited first
    a rec=4+ p=2; c rec=4+; b sensor=90 q=2; d sensor=90 -> rec=4 [unlimited dim]; unbatched b d
a time-like dim is preferred to a larger one -- of several: time-like before more elements
    a time=4 p=2; c time=4; b sensor=90 q=2; d sensor=90; @time:time time=4 -> time=4; unbatched b d
a dim is time-like by its coordinate -- of several: time-like before more elements
    a hour=4 p=2; c hour=4; b sensor=90 q=2; d sensor=90; @hour:time hour=4 -> hour=4; unbatched b d
the dim of more elements is preferred -- of several: more elements
    a run=4 p=2; c run=4; b sensor=90 q=2; d sensor=90 -> sensor=90; unbatched a c
two dims that nothing but their names tells apart -- of several: by name
    a beta=4 p=2; c beta=4; b alpha=4 q=2; d alpha=4 -> alpha=4; unbatched a c
statistics in a nested group -- nested groups follow where they fit and are unbatched where they do not
    obs row=20 f=3; reward row=20; stats/mean f=3; stats/count; next/obs row=20 f=3
    -> row=20; unbatched stats/mean stats/count; groups {"next": [20]}
groups that share their batch under an empty root -- the root takes what all its children share
    left/img time=9 y=4 x=4; right/img time=9 y=4 x=4; @time:time time=9
    -> time=9; groups {"left": [9], "right": [9]}
""")

ROWS = [*WEATHER, *OCEAN, *SATELLITE, *IMAGES, *LEARNING, *ODD]
