"""One row for each word and each inequality of the rules of inference (docs/rules/inference.md), in their order."""

from dataclasses import replace

from inference_rows import LATITUDE, LONGITUDE, NAMED, NONE, SHAPE, UNLIMITED, Row, coord, grid2d, named, raw, time, var

DATA = [var("x", run=6, f=3), var("r", run=6)]
"""An array and a series over runs: without anything else, 'run' is the batch."""
RUN = [("run", 6)]


def beside(name, array, why, *, unbatched=None, partial="", **more):
    """`DATA` beside a larger array over other dims, which would win or veto if it voted."""
    path = "/".join(array.key)
    return Row(name, [*DATA, array], RUN, why, NAMED, path if unbatched is None else unbatched, partial, **more)


def referenced(attr, value="other", **dims):
    """Data whose attribute refers to a larger array over other dims."""
    return [named("x", ("run", "f"), (6, 3), attrs={attr: value}), var("r", run=6), var("other", cell=90, g=4)]


NO_VOTE = [
    beside("strings do not vote", var("other", kind="string", cell=90, g=4), "strings have no vote"),
    beside("times do not vote", var("other", kind="time", cell=90, g=4), "times have no vote"),
    beside("objects do not vote", var("other", kind="object", cell=90, g=4), "objects have no vote"),
    beside("coordinates do not vote", coord("other", cell=90, g=4), "coordinates have no vote"),
    beside(
        "empty arrays do not vote", named("other", ("rec", "g"), (0, 4), unlimited=("rec",)), "no elements, no vote"
    ),
    *[
        Row(
            f"what {attr} refers to does not vote",
            referenced(attr),
            RUN,
            f"{attr} refers to it",
            NAMED,
            unbatched="other",
        )
        for attr in ("bounds", "climatology", "coordinates", "ancillary_variables", "grid_mapping")
    ],
    *[
        Row(
            f"what {attr} refers to does not vote",
            referenced(attr, "word: other"),
            RUN,
            f"{attr} holds pairs",
            NAMED,
            unbatched="other",
            other_case=False,
        )
        for attr in ("cell_measures", "formula_terms")
    ],
    Row(
        "the word of a measure is no variable",
        [*referenced("cell_measures", "word: other"), var("word", run=6, f=3)],
        RUN,
        "a voter that happens to be called like the word votes",
        NAMED,
        unbatched="other",
        other_case=False,
    ),
    Row(
        "coordinates that the group names",
        [*DATA, var("other", cell=90, g=4)],
        RUN,
        "the attribute of a group refers to it",
        NAMED,
        unbatched="other",
        group_attrs={(): {"coordinates": "lat other"}},
        other_case=False,
    ),
    Row(
        "what two attributes refer to",
        [*referenced("bounds"), named("z", ("run",), (6,), attrs={"coordinates": "other", "grid_mapping": "other"})],
        RUN,
        "the first that refers to it is named",
        NAMED,
        unbatched="other",
        other_case=False,
    ),
    Row(
        "attributes that are no text",
        [
            named("x", ("run", "f"), (6, 3), attrs={"bounds": 3, "coordinates": None, "units": 5, "axis": 1}),
            var("r", run=6),
        ],
        RUN,
        "they refer to nothing",
        NAMED,
        other_case=False,
    ),
    Row(
        "a group of an encoding that is no text",
        [raw("m/a", 30, 2), raw("m/b", 30)],
        [(None, 30)],
        "bytes that are no UTF-8 are no encoding",
        SHAPE,
        group_attrs={("m",): {"encoding-type": b"csr\xff"}},
    ),
    Row(
        "a grid mapping with a colon",
        referenced("grid_mapping", "other: lat lon"),
        RUN,
        "CF lets a grid mapping name its coordinates",
        NAMED,
        unbatched="other",
        other_case=False,
    ),
    *[
        Row(
            f"a group of encoding {encoding}",
            [raw("m/data", 90), raw("m/odd", 30, 2), raw("m/also", 30)],
            [],
            "its attribute says that it is a sparse matrix",
            NONE,
            groups={"m": ()},
            group_attrs={("m",): {attr: encoding}},
        )
        for attr, encoding in (
            ("encoding-type", "csr_matrix"),
            ("encoding-type", "csc_matrix"),
            ("h5sparse_format", "csr"),
            ("h5sparse_format", b"csc"),
        )
    ],
    Row(
        "a group of another encoding",
        [raw("m/a", 30, 2), raw("m/b", 30)],
        [(None, 30)],
        "a data frame is no sparse matrix",
        SHAPE,
        group_attrs={("m",): {"encoding-type": "dataframe"}},
    ),
    *[
        Row(
            f"X and X{suffix}",
            [raw("id", 4), raw("w", 4, 2), raw("x", 900), raw(f"x{suffix}", 4)],
            [(None, 4)],
            "the partner has one entry for each row, so it votes, and x is cut",
            SHAPE,
            unbatched="x",
        )
        for suffix in ("_index", "_length", "_lengths", "_row_lengths", "_lens", "_counts")
    ],
    *[
        Row(
            f"X and X{suffix}",
            [raw("id", 4), raw("w", 4, 2), raw("x", 900), raw(f"x{suffix}", 5)],
            [(None, 4)],
            "the partner has one entry more than rows, so neither votes",
            SHAPE,
            unbatched=f"x x{suffix}",
        )
        for suffix in ("_offsets", "_splits", "_row_splits", "_indptr", "_ptr")
    ],
    Row(
        "columns and bounds in another case",
        [raw("id", 4), raw("w", 4, 2), raw("Hits", 900), raw("hits_Offsets", 5)],
        [(None, 4)],
        "names are compared without case",
        SHAPE,
        unbatched="Hits hits_Offsets",
    ),
    Row(
        "a scalar beside its index",
        [raw("id", 4), raw("w", 4, 2), raw("x"), raw("x_index", 4)],
        [(None, 4)],
        "a scalar is not cut",
        SHAPE,
        unbatched="x",
    ),
    Row(
        "a column that is cut by counts and by bounds",
        [raw("id", 4), raw("w", 4, 2), raw("x", 900), raw("x_counts", 4), raw("x_offsets", 5)],
        [(None, 4)],
        "the counts vote, the bounds do not",
        SHAPE,
        unbatched="x x_offsets",
    ),
    Row(
        "text that is cut into rows",
        [raw("id", 4), raw("w", 4, 2), raw("x", 900, kind="string"), raw("x_offsets", 5)],
        [(None, 4)],
        "the bounds do not vote",
        SHAPE,
        unbatched="x x_offsets",
    ),
    Row(
        "bounds as long as their values",
        [raw("x", 5, 2), raw("x_offsets", 5)],
        [(None, 5)],
        "a partner of the same length cuts nothing",
        SHAPE,
    ),
    Row(
        "the group of an episode beside the lengths of its episodes",
        [raw("episode/obs", 60, 4), raw("episode/act", 60, 2), raw("episode/rew", 60), raw("episode_lengths", 3)],
        [(None, 60)],
        "nothing but the lengths has one entry for each episode, so the columns are the data",
        SHAPE,
        unbatched="episode_lengths",
        groups={"episode": (60,)},
    ),
    Row(
        "floating point offsets beside data",
        [raw("x", 900, 2), raw("y", 900), replace(raw("x_offsets", 5), integral=False)],
        [(None, 900)],
        "floats are no bounds",
        SHAPE,
        unbatched="x_offsets",
    ),
    Row(
        "floating point lengths beside values",
        [raw("values", 90, 2), raw("mask", 90), replace(raw("lengths", 3), integral=False)],
        [(None, 90)],
        "floats count nothing",
        SHAPE,
        unbatched="lengths",
    ),
    Row(
        "images with an index of some of them",
        [raw("image", 60, 8, 8), raw("label", 60), raw("image_index", 5)],
        [(None, 60)],
        "labels have a row for each image, and nothing has five rows",
        SHAPE,
        unbatched="image_index",
    ),
    Row(
        "photons with the counts of each channel",
        [raw("photon", 100, 64), raw("time", 100), raw("photon_counts", 64)],
        [(None, 100)],
        "the counts are as long as the second axis of what they count",
        SHAPE,
        unbatched="photon_counts",
    ),
    Row(
        "photons with counts and wavelengths of each channel",
        [raw("photon", 100, 64), raw("time", 100), raw("photon_counts", 64), raw("wavelength", 64)],
        [(None, 100)],
        "an array as long as they are does not make channels rows",
        SHAPE,
        unbatched="photon_counts wavelength",
    ),
    Row(
        "a table of counts is no partner",
        [raw("x", 900, 2), raw("y", 900), raw("x_counts", 4, 2)],
        [(None, 900)],
        "a partner has one dim",
        SHAPE,
        unbatched="x_counts",
    ),
    Row(
        "counts longer than what they count",
        [raw("x", 4, 500), raw("name", 4, kind="string"), raw("x_counts", 900)],
        [(None, 4)],
        "x has fewer rows than there are counts, so nothing is cut",
        SHAPE,
        unbatched="x_counts",
    ),
    Row(
        "a lookup table and its index",
        [raw("x", 4, 2), raw("x_index", 900)],
        [(None, 900)],
        "a table that is looked up is no main array",
        SHAPE,
        unbatched="x",
    ),
    Row(
        "two ragged columns of one length",
        [raw("x", 900), raw("x_index", 4), raw("w", 900), raw("w_index", 4)],
        [(None, 4)],
        "each has a partner, so neither speaks for the length of the other",
        SHAPE,
        unbatched="x w",
    ),
    *[
        Row(
            f"columns with a common prefix and {partner}",
            [raw("jet_pt", 700), raw("jet_eta", 700), raw(partner, size), raw("met", 100), raw("label", 100)],
            [(None, 100)],
            "met and label have the rows that the jets are cut into",
            SHAPE,
            unbatched=f"jet_pt jet_eta{silent}",
        )
        for partner, size, silent in (("jet_offsets", 101, " jet_offsets"), ("nJet", 100, ""))
    ],
    Row(
        "columns with a common prefix and offsets of other rows",
        [raw("jet_pt", 700), raw("jet_eta", 700), raw("jet_offsets", 101), raw("met", 90)],
        [(None, 700)],
        "no array has 100 rows",
        SHAPE,
        unbatched="jet_offsets met",
    ),
    Row(
        "columns with a common prefix among columns of their length",
        [raw("jet_pt", 700), raw("other", 700), raw("jet_offsets", 101), raw("met", 100)],
        [(None, 700)],
        "they are no table of their own",
        SHAPE,
        unbatched="jet_offsets met",
    ),
    *[
        Row(
            f"{cut} beside {partner}",
            [raw(f"g/{partner}", 50), raw(f"g/{cut}", 193)],
            [(None, 50)],
            "the partner has one entry for each row",
            SHAPE,
            unbatched=f"g/{cut}",
            groups={"g": (50,)},
        )
        for partner, cut in (("cumulative_length", "flattened_data"), ("lengths", "values"))
    ],
    *[
        Row(
            f"{cut} beside {partner}",
            [raw(f"g/{partner}", 51), raw(f"g/{cut}", 193), raw("g/mask", 193)],
            [(None, 193)],
            "neither votes; a mask as long as the values does",
            SHAPE,
            unbatched=f"g/{partner}",
            groups={"g": (193,)},
        )
        for partner, cut in (
            ("offsets", "content"),
            ("offsets", "values"),
            ("offsets", "data"),
            ("row_splits", "values"),
            ("row_splits", "flat_values"),
        )
    ],
    Row(
        "offsets and values of a table of four columns",
        [raw("offsets", 40), raw("values", 80), raw("a", 40, 3), raw("b", 40)],
        [(None, 40)],
        "a table may have columns of such names: more than three members are no ragged column",
        SHAPE,
        unbatched="values",
    ),
    Row(
        "columns of a group that is cut",
        [raw("id", 4), raw("w", 4, 2), raw("hits/e", 900), raw("hits/t", 900), raw("hits_offsets", 5)],
        [(None, 4)],
        "the group is cut by hits_offsets",
        SHAPE,
        unbatched="hits/e hits/t hits_offsets",
    ),
    *[
        Row(
            f"the group {name}",
            [raw("table/x", 50, 2), raw("table/y", 50), raw(f"{name}/a", 900, 2), raw(f"{name}/b", 900)],
            [(None, 50)],
            "it is the format's own",
            SHAPE,
            unbatched=f"{name}/a {name}/b",
        )
        for name in ("#refs#", "#subsystem#", ".hidden", "_i_table")
    ],
    Row(
        "a group that starts with an underscore",
        [raw("table/x", 50, 2), raw("table/y", 50), raw("_own/a", 900, 2), raw("_own/b", 900)],
        [],
        "not every underscore is private",
        NONE,
        groups={"_own": (900,)},
    ),
    *[
        Row(
            f"a group of CLASS {kind}",
            [raw("table/x", 50, 2), raw("table/y", 50), raw("search/a", 900, 2), raw("search/b", 900)],
            [(None, 50)],
            "it is a search index of PyTables",
            SHAPE,
            unbatched="search/a search/b",
            group_attrs={("search",): {"CLASS": kind}},
        )
        for kind in ("TINDEX", b"INDEX")
    ],
]

FIRST_DIM = [
    Row(
        "as many numbers elsewhere as in front",
        [var("a", time=6, p=4), var("b", run=4, time=6)],
        [("run", 4)],
        "time leads 24 numbers and 24 have it elsewhere: it does not lead more",
        NAMED,
        unbatched="a",
    ),
    Row(
        "one number more in front than elsewhere",
        [var("a", time=6, p=4), var("b", run=4, time=6), var("c", time=6)],
        [("time", 6)],
        "30 against 24",
        NAMED,
        unbatched="",
        either="b",
    ),
    Row(
        "exactly half of the numbers",
        [var("a", run=4, p=3, q=2), var("b", x=24)],
        [("run", 4)],
        "24 of 48 numbers are at least half",
        NAMED,
        unbatched="b",
    ),
    Row(
        "one number less than half",
        [var("a", run=4, p=3, q=2), var("b", x=25)],
        [],
        "24 of 49: more would be left out than taken",
        NONE,
    ),
    Row(
        "three dims without a majority",
        [var("a", p=5, f=2, g=2), var("b", q=16), var("c", r=15)],
        [],
        "a mesh of several kinds of elements",
        NONE,
    ),
    Row(
        "a time of lower rank that leads most of the numbers",
        [var("a", time=90), var("b", run=4, p=3, q=2)],
        [("time", 90)],
        "90 of 114 numbers",
        NAMED,
        unbatched="b",
    ),
    Row(
        "a time of lower rank with exactly half of the numbers",
        [var("a", time=24), var("b", run=4, p=3, q=2)],
        [("run", 4)],
        "neither the highest rank nor most of the numbers",
        NAMED,
        unbatched="a",
    ),
    Row(
        "arrays led by space do not count for the rank",
        [var("a", time=5, f=2), var("b", z=9, y=9, x=9)],
        [("time", 5)],
        "a mask in three dims",
        NAMED,
        unbatched="b",
    ),
    *[
        Row(
            f"{count} arrays over dims of their own",
            [named(f"a{n}", (f"p{n}", "f"), (4 + n, 3)) for n in range(count)],
            [],
            "none leads half of the numbers",
            NONE,
        )
        for count in (4, 5)
    ],
    Row(
        "the numbers of unnamed arrays do not count against a name",
        [var("a", run=5, f=2), var("b", lat=6), raw("w", 7, 1)],
        [("run", 5)],
        "10 of 16 named numbers; the unnamed ones are no majority",
        NAMED,
        unbatched="b w",
    ),
    Row(
        "unnamed arrays that share nothing leave it to the names",
        [var("a", run=5, f=2), raw("w", 90, 9)],
        [("run", 5)],
        "one unnamed array has no majority of two",
        NAMED,
        unbatched="w",
    ),
    Row(
        "a dim that could be the batch comes second before a time that could not",
        [var("a", time=4, p=2, q=2), var("b", date=3), var("c", run=9, f=3)],
        [("time", 4)],
        "the highest rank; run leads more numbers, date is a time of neither",
        NAMED,
        unbatched="b c",
    ),
    Row(
        "a marked dim before an unlimited one",
        [var("a", batch_0=4, f=3), named("b", ("rec", "g"), (9, 3), unlimited=("rec",))],
        [("batch_0", 4)],
        "marked first",
        NAMED,
        unbatched="b",
        other_case=False,
    ),
    Row(
        "an unlimited dim before a time",
        [named("a", ("rec", "f"), (9, 3), unlimited=("rec",)), var("b", time=40, g=30), time(40)],
        [("rec", 9)],
        "unlimited before time-like",
        UNLIMITED,
        unbatched="b time",
    ),
    *[
        Row(
            f"a dim called {name}",
            [var("a", run=9, f=3), named("b", (name, "g"), (4, 3))],
            [(name, 4)],
            "a time by its plain name",
            NAMED,
            unbatched="a",
        )
        for name in ("time", "T", "Date", "datetime")
    ],
    *[
        Row(
            f"a dim whose coordinate has {attrs}",
            [
                var("a", run=9, f=3),
                var("b", stamp=4, g=3),
                named("stamp", ("stamp",), (4,), kind=kind, role="index", attrs=attrs),
            ],
            [("stamp", 4)],
            "a time by its coordinate",
            NAMED,
            unbatched="a",
        )
        for kind, attrs in (
            ("numeric", {"axis": "T"}),
            ("numeric", {"standard_name": "time"}),
            ("object", {"units": "days since 2000-01-01"}),
            ("time", {}),
        )
    ],
]

FURTHER_DIMS = [
    Row(
        "unnamed arrays with almost half of the numbers",
        [var("a", run=5, f=2), raw("v", 4), raw("w", 4, 1)],
        [("run", 5)],
        "8 of 18 numbers are no majority",
        NAMED,
        unbatched="v w",
    ),
    Row(
        "unnamed arrays with more than half of the numbers",
        [var("a", run=5, f=2), raw("v", 6), raw("w", 6, 1)],
        [(None, 6)],
        "12 of 22 numbers",
        SHAPE,
        unbatched="a",
    ),
    Row(
        "five next dims",
        [named(f"a{n}", ("run", f"mode{n}", "lat"), (4, 3, 5)) for n in range(5)],
        [("run", 4)],
        "the arrays do not agree",
        NAMED,
    ),
    Row(
        "a static field with a dim that is no space",
        [var("a", run=4, time=3, f=2, lat=5), var("m", run=4, f=2)],
        [("run", 4)],
        "f is no space, so m has no say for 'without time'",
        NAMED,
    ),
    Row(
        "a static field over space that no other has",
        [var("a", run=4, time=3, lat=5), var("m", run=4, lon=6)],
        [("run", 4)],
        "lon stands behind no time",
        NAMED,
    ),
    Row(
        "a series for each run",
        [var("a", run=4, time=3, lat=5), var("m", run=4)],
        [("run", 4)],
        "nothing is left of m, so it is no field",
        NAMED,
    ),
    Row(
        "the next dim elsewhere",
        [var("a", run=4, time=3, lat=5), var("m", time=3, lat=5)],
        [("run", 4)],
        "m has time elsewhere",
        NAMED,
        unbatched="m",
    ),
    Row(
        "two next dims",
        [var("a", run=4, time=3, lat=5), var("m", run=4, mode=3, lat=5)],
        [("run", 4)],
        "the arrays do not agree",
        NAMED,
    ),
    Row(
        "three dims",
        [var("a", run=4, member=2, time=3, lat=5), var("m", run=4, member=2, lat=5)],
        [("run", 4), ("member", 2), ("time", 3)],
        "a static field for each member",
        NAMED,
        partial="m",
    ),
]

FEATURE_NAMES = (
    "lat lon latitude longitude x y z i j k xc yc eta_rho xi_u s_rho s_w nav_lev south_north south_north_stag west_east "
    "west_east_stag bottom_top bottom_top_stag lev level plev height depth depth_2 dep deptht deptu deptv deptw altitude pressure "
    "layer nz nz1 nz_1 c channel channels band wavelength variable feature features bnds bounds nv vertices strlen"
).split()
NO_FEATURE_NAMES = (
    "lats xx department deptx height2 images channel_id s_x nzx etas xis navy south west x_train y_pos".split()
)

FEATURES = [
    *[
        Row(
            f"{name} is a feature dim",
            [named("a", (name, "f"), (4, 3)), named("b", (name,), (4,))],
            [],
            "by its name",
            NONE,
        )
        for name in FEATURE_NAMES
    ],
    *[
        Row(
            f"{name} is no feature dim",
            [named("a", (name, "f"), (4, 3)), named("b", (name,), (4,))],
            [(name, 4)],
            "names are compared as a whole",
            NAMED,
        )
        for name in NO_FEATURE_NAMES
    ],
    Row("x_rho beside y_rho", [var("a", x_rho=4, y_rho=3), var("b", x_rho=4)], [], "a pair in one array", NONE),
    Row("x_rho beside y_v", [var("a", x_rho=4, y_v=3), var("b", x_rho=4)], [], "a pair in one array", NONE),
    Row("x_a beside x_b", [var("a", x_a=4, x_b=3), var("b", x_a=4)], [("x_a", 4)], "no y beside them", NAMED),
    Row(
        "x_a and y_a in different arrays",
        [var("a", x_a=4, f=3), var("b", y_a=2)],
        [("x_a", 4)],
        "no pair in one array",
        NAMED,
        unbatched="b",
    ),
    Row("dim_5 of size 5", [var("a", dim_5=5, f=3), var("b", dim_5=5)], [], "made up", NONE, other_case=False),
    Row(
        "dim_5 of size 6",
        [var("a", dim_5=6, f=3), var("b", dim_5=6)],
        [("dim_5", 6)],
        "xarray counts axes",
        NAMED,
        other_case=False,
    ),
    Row(
        "dim_5 of size 6 in the first of two arrays",
        [var("a", dim_5=6, f=3), var("b", dim_5=2)],
        [("dim_5", 6)],
        "it is longer than its number somewhere",
        NAMED,
        either="b",
        other_case=False,
    ),
    Row(
        "g.lat is a feature dim",
        [named("a", ("g.lat", "f"), (4, 3)), named("b", ("g.lat",), (4,))],
        [],
        "lat of a group g",
        NONE,
    ),
    Row("dim_5_1 of size 5", [var("a", dim_5_1=5, f=3), var("b", dim_5_1=5)], [], "made up", NONE, other_case=False),
    Row(
        "no rows under a name of xarray's own",
        [var("a", dim_0=0, dim_1=4), var("b", dim_0=0)],
        [("dim_0", 0)],
        "dim_1 is longer than its number, so xarray counted the axes",
        NAMED,
        other_case=False,
    ),
    Row(
        "one row under a name of xarray's own, transposed",
        [var("a", dim_1=1, dim_0=4), var("b", dim_1=1)],
        [("dim_1", 1)],
        "dim_0 is longer than its number",
        NAMED,
        other_case=False,
    ),
    Row(
        "a made-up axis beside a name of xarray's own",
        [var("a", dim_0=9, dim_2=2), var("b", dim_0=9)],
        [("dim_0", 9)],
        "no array of two axes has a third",
        NAMED,
        other_case=False,
    ),
    *[
        Row(
            f"a coordinate with {attrs}",
            [var("a", row=4, f=3), var("b", row=4), named("row", ("row",), (4,), role="index", attrs=attrs)],
            [],
            "CF marks the dim as space",
            NONE,
            other_case=False,
        )
        for attrs in (
            {"axis": "X"},
            {"axis": "y"},
            {"axis": "Z"},
            {"standard_name": "latitude"},
            {"standard_name": "projection_x_coordinate"},
            {"standard_name": "air_pressure"},
            {"units": "degrees_north"},
            {"units": "Degree_East"},
            {"positive": "up"},
            {"positive": "down"},
            *({"units": unit} for unit in ("hPa", "Pa", "mbar", "millibar", "dbar")),
        )
    ],
    *[
        Row(
            f"a coordinate with {attrs} is no space",
            [var("a", row=4, f=3), var("b", row=4), named("row", ("row",), (4,), role="index", attrs=attrs)],
            [("row", 4)],
            "CF does not mark the dim",
            NAMED,
        )
        for attrs in ({"axis": "T"}, {"units": "degrees"}, {"standard_name": "wind_speed"}, {"positive": "left"})
    ],
    Row(
        "a spatial variable that is no index marks no dim",
        [var("a", cast=4, f=3), var("b", cast=4), coord("lat", attrs=LATITUDE, cast=4)],
        [("cast", 4)],
        "the latitude of a cast is no dim of space",
        NAMED,
    ),
    Row(
        "a grid of unknown names by the longitude alone",
        [var("a", run=2, row=4, col=3), coord("tlong", attrs=LONGITUDE, row=4, col=3)],
        [("run", 2)],
        "a voter has a dim in front of its dims",
        NAMED,
        unbatched="tlong",
    ),
    *[
        Row(
            f"a grid by {attrs}",
            [var("a", run=2, row=4, col=3), coord("tl", attrs=attrs, row=4, col=3)],
            [("run", 2)],
            "one attribute is enough",
            NAMED,
            unbatched="tl",
        )
        for attrs in (
            {"standard_name": "latitude"},
            {"standard_name": "longitude"},
            {"units": "degrees_north"},
            {"units": "degreeE"},
        )
    ],
    *[
        Row(
            f"a grid by the name {name}",
            [var("a", run=2, row=4, col=3), coord(name, row=4, col=3)],
            [("run", 2)],
            "a latitude or longitude by its plain name",
            NAMED,
            unbatched=name,
        )
        for name in ("lat", "Latitude", "nav_lat", "XLAT", "lon", "longitude", "nav_lon", "xlong")
    ],
    Row(
        "two-dimensional coordinates that are neither latitude nor longitude",
        [var("a", run=2, row=4, col=3), var("b", run=2, row=4), coord("heading", row=4, col=3)],
        [("run", 2), ("row", 4)],
        "no grid",
        NAMED,
        partial="heading",
    ),
    Row(
        "a grid with half of the numbers behind another dim",
        [
            var("a", run=2, row=4, col=3),
            var("b", row=4, col=3),
            var("c", row=4, col=3),
            *grid2d("tlat", "tlong", row=4, col=3),
        ],
        [("run", 2)],
        "24 of 48 numbers",
        NAMED,
        unbatched="b c tlat tlong",
    ),
    Row(
        "a swath with less than half of the numbers behind another dim",
        [var("a", run=2, row=4, col=3), var("b", row=4, col=3, f=3), *grid2d("tlat", "tlong", row=4, col=3)],
        [("row", 4)],
        "24 of 60 numbers: the rows and columns are a swath",
        NAMED,
    ),
    Row(
        "a selection of no rows of a grid",
        [var("a", run=0, row=4, col=3, f=2), var("b", run=0, row=4, col=3), *grid2d("tlat", "tlong", row=4, col=3)],
        [("run", 0)],
        "a grid without elements is still one",
        NAMED,
        unbatched="tlat tlong",
    ),
    Row(
        "a latitude over three dims",
        [
            var("a", run=2, row=4, col=3, f=2),
            var("b", run=2, row=4, col=3),
            coord("lat2", attrs=LATITUDE, run=2, row=4, col=3),
        ],
        [("run", 2), ("row", 4), ("col", 3)],
        "a latitude of every run is no grid",
        NAMED,
    ),
    Row(
        "a swath whose voters have no dim in front",
        [var("a", row=4, col=3, band=2), var("b", row=4), *grid2d("lat", "lon", row=4, col=3)],
        [("row", 4)],
        "a swath, not a grid",
        NAMED,
    ),
    Row(
        "a repeated dim leads nothing",
        [named("k", ("cell", "cell"), (5, 5)), var("a", cell=5, f=90)],
        [],
        "a dim that one array repeats is a feature",
        NONE,
    ),
]

SHAPES = [
    Row("two of three arrays with exactly half of the elements", [raw("a", 4, 2), raw("b", 4), raw("c", 3, 4)], [],
        "12 of 24 elements are no majority", NONE),
    Row("two of three arrays with one element more than half", [raw("a", 4, 2), raw("b", 4), raw("c", 11)], [(None, 4)],
        "12 of 23 elements", SHAPE, unbatched="c"),
    Row("one array with most of the elements", [raw("a", 9, 9), raw("c", 11)], [], "a majority needs two arrays", NONE),
    Row("text makes a majority of two", [raw("a", 9, 9), raw("n", 9, kind="string"), raw("c", 11)], [(None, 9)],
        "strings count here", SHAPE, unbatched="c"),
    Row("times make a majority of two", [raw("a", 9, 9), raw("n", 9, kind="time"), raw("c", 11)], [(None, 9)],
        "datetimes count here", SHAPE, unbatched="c"),
    Row("scalars do not count for a majority", [raw("a", 9, 9), raw("n"), raw("c", 11)], [], "a scalar has no leading size", NONE),
    Row("a table of text", [raw("t/a", 7, kind="string"), raw("t/b", 7, kind="string")], [(None, 7)],
        "a group of nothing but text", SHAPE, groups={"t": (7,)}),
    Row("a table of text beside numbers", [raw("t/a", 7, kind="string"), raw("t/b", 7, kind="string"), raw("n/x", 9, 2), raw("n/y", 9)],
        [(None, 9)], "text does not vote", SHAPE, groups={"n": (9,)}, unbatched="t/a t/b"),
    Row("a table of text with names that this package gave", [var("a", kind="string", batch_0=7), var("b", kind="string", batch_0=7)],
        [("batch_0", 7)], "its names say no more than shapes", SHAPE, other_case=False),
    Row("a table of text with names", [var("a", kind="string", row=7), var("b", kind="string", row=7)], [], "names are not shapes", NONE),
    Row("a named second axis", [named("a", (None, "f"), (6, 3)), named("b", (None,), (6,))], [(None, 6)],
        "the first axes have no names", SHAPE),
]  # fmt: skip

GROUPS = [
    Row("a small array that agrees with almost half of the numbers", [raw("own", 5), raw("g/a", 5, 9), raw("h/a", 7, 9)], [],
        "45 of 108 numbers", NONE, groups={"g": (5,), "h": (7,)}),
    Row("a small array that agrees with exactly half of the numbers", [raw("own", 5), raw("g/a", 5, 9), raw("h/a", 9, 5)], [],
        "45 of 90 numbers are not most of them", NONE, groups={"g": (5,), "h": (9,)}),
    Row("a small array that agrees with a little more than half", [raw("own", 5), raw("g/a", 5, 10), raw("h/a", 9, 5)], [(None, 5)],
        "50 of 95 numbers", SHAPE, unbatched="h/a"),
    Row("groups of one size over different dims", [var("g/x", a=5, f=3), var("g/z", a=5), var("h/y", b=5, f=2), var("h/z", b=5)], [],
        "the names differ", NONE, groups={"g": (5,), "h": (5,)}),
    Row("groups of one size, one of them without names", [var("g/x", a=5, f=3), var("g/z", a=5), raw("h/y", 5, 2), raw("h/z", 5)],
        [("a", 5)], "a name says nothing against an axis without one", NAMED),
    Row("groups that share the first of two dims", [raw("g/x", 5, 4, 3), raw("g/z", 5, 4), raw("h/y", 5, 2), raw("h/z", 5)], [(None, 5)],
        "as much as all of them share", SHAPE),
    Row("a selection of no rows", [var("x", time=0, lat=3), var("m", lat=3)], [("time", 0)],
        "the mask is the only array with elements; the names of all decide", NAMED, unbatched="m"),
    Row("a lone array with a tenth of the numbers", [raw("own", 10), raw("g/a", 15, 3), raw("g/b", 15, 3)], [(None, 10)],
        "10 of 100 numbers are not small", SHAPE, unbatched="g/a g/b"),
    Row("a lone array with less than a tenth", [raw("own", 10), raw("g/a", 15, 3), raw("g/b", 23, 2)], [],
        "10 of 101 numbers; the groups share nothing", NONE, groups={"g": ()}),
    Row("two small arrays that agree", [raw("own", 3), raw("too", 3), raw("g/a", 100, 3), raw("g/b", 100)], [(None, 100)],
        "6 of 406 numbers: the group is asked", SHAPE, unbatched="own too"),
    Row("two arrays that agree with a tenth of the numbers", [raw("own", 5), raw("too", 5), raw("g/a", 15, 3), raw("g/b", 15, 3)],
        [(None, 5)], "10 of 100 numbers are not small", SHAPE, unbatched="g/a g/b"),
    Row("two small arrays that agree beside groups that do not",
        [raw("own", 3), raw("too", 3), raw("g/a", 100, 3), raw("h/a", 90, 3)], [(None, 3)],
        "nothing speaks against them", SHAPE, unbatched="g/a h/a"),
    Row("camera matrices of one size beside the frames",
        [raw("K", 3, 3), raw("P", 3, 4), raw("left/depth", 200, 8, 8), raw("right/depth", 200, 8, 8)], [(None, 200)],
        "21 of 25621 numbers", SHAPE, unbatched="K P"),
    Row("axes of a grid in a group beside the fields",
        [*(raw(f"dimensions/{name}", size) for name, size in (("t", 11), ("x", 8), ("y", 8))),
         raw("t0/rho", 4, 11, 8, 8), raw("t1/v", 4, 11, 8, 8, 2)],
        [(None, 4)], "the axes do not agree on a batch, so they take none from the fields", SHAPE,
        unbatched="dimensions/t dimensions/x dimensions/y"),
    Row("constants in a group beside the fields",
        [raw("constants/a", 3), raw("constants/b", 2), raw("data/x", 20, 8), raw("data/y", 20)], [(None, 20)],
        "the constants share nothing", SHAPE, unbatched="constants/a constants/b"),
    Row("a group that shares nothing with a tenth of the numbers",
        [raw("c/a", 3), raw("c/b", 7), raw("data/x", 10, 8), raw("data/y", 10)], [],
        "10 of 100 numbers are not small", NONE, groups={"c": (), "data": (10,)}),
    Row("a small group with a batch of its own beside a large one",
        [raw("meta/ends", 4), raw("data/x", 90, 8), raw("data/y", 90)], [],
        "rows and episodes are both batches", NONE, groups={"meta": (4,), "data": (90,)}),
    Row("two small arrays that share nothing", [raw("own", 3), raw("too", 2), raw("g/a", 100, 3), raw("g/b", 100)], [(None, 100)],
        "the groups are asked", SHAPE, unbatched="own too"),
    Row("a small lone array that agrees with most", [raw("own", 50), raw("g/a", 50, 30), raw("h/a", 1, 9)], [(None, 50)],
        "nothing is overruled", SHAPE, unbatched="h/a"),
    Row("a small lone array that agrees with less than half", [raw("own", 5), raw("g/a", 5, 10), raw("h/a", 7, 90)], [],
        "most numbers are in groups of another size", NONE, groups={"g": (5,), "h": (7,)}),
    Row("siblings of equal names and other sizes",
        [var("p/mu", chain=2, draw=5), var("p/th", chain=2, draw=5, s=3), var("q/th", chain=1, draw=5, s=3)],
        [], "the groups have batches over the same dims", NONE, groups={"p": (2, 5), "q": (1, 5)}),
    Row("a sibling that has less", [var("p/mu", chain=2, f=5), var("q/th", chain=2, f=5, s=3), var("q/r", chain=2)],
        [("chain", 2)], "one of them stops at chain by itself", NAMED, groups={"p": (2,), "q": (2,)}),
    Row("a sibling whose arrays do not go on with the dim",
        [var("p/mu", chain=2, draw=5), var("p/th", chain=2, draw=5, s=3), var("q/r", chain=2)],
        [("chain", 2)], "q has no draws", NAMED, groups={"p": (2,), "q": (2,)}),
    Row("a small group with a longer batch than the group beside it",
        [raw("g/x", 4, 3, 2), raw("g/y", 4, 3), raw("h/a", 4, 900), raw("h/b", 4, 900, 2)], [(None, 4)],
        "all arrays of the small group lead with its batch, so it counts", SHAPE),
    Row("a selection of no rows beside a coordinate of another dim",
        [var("x", time=0, lat=3, lon=4), var("mask", lat=3, lon=4), coord("c", q=5)], [("time", 0)],
        "only the mask has elements, and the coordinate has no vote", NAMED, unbatched="mask c"),
    Row("groups without voters do not count",
        [raw("a/x", 9, 2), raw("a/y", 9), raw("b/name", 4, kind="string"), raw("c/s")], [(None, 9)], "b and c have no voters", SHAPE,
        unbatched="b/name c/s"),
]  # fmt: skip

WHO_CUTS_WHAT = [
    Row("arrays without names that hold two fifths of the numbers",
        [var("a", row=10, f=3), var("b", row=10, f=3), raw("c", 20, 2)], [("row", 10)],
        "less than half of the numbers have no names", NAMED, unbatched="c"),
    Row("two arrays of as many numbers that share nothing", [raw("a", 4, 3), raw("b", 6, 2)], [],
        "neither is the main array", NONE),
    Row("counts beside an array that is as long as what they cut",
        [raw("times", 900), raw("times_lengths", 4), raw("x", 4, 900), raw("y", 900)], [(None, 4)],
        "x has the rows of the counts", SHAPE, unbatched="times y"),
    Row("two columns of one length, with counts of two lengths",
        [raw("a", 900), raw("a_lengths", 4), raw("b", 900), raw("b_lengths", 5)], [],
        "both are cut, each by its own", NONE),
    Row("bounds of rows of one element each", [raw("x", 5), raw("x_offsets", 6)], [],
        "one entry more than rows", NONE),
    Row("one bound too many", [raw("x", 5), raw("x_offsets", 7)], [], "these are no bounds of five rows", NONE),
    Row("an array called n beside names that begin with an underscore",
        [raw("n", 4), raw("_a", 900), raw("_b", 900), raw("y", 4)], [(None, 900)], "n counts nothing that has a name", SHAPE,
        unbatched="n y"),
    Row("counts of an array that is there, beside columns of its name",
        [raw("njet", 4), raw("jet", 4, 2), raw("jet_pt", 900), raw("jet_eta", 900)], [(None, 900)],
        "njet counts the jets that jet has", SHAPE, unbatched="njet jet"),
]  # fmt: skip

RULES = [*NO_VOTE, *FIRST_DIM, *FURTHER_DIMS, *FEATURES, *SHAPES, *GROUPS, *WHO_CUTS_WHAT]
