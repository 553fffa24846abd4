"""One row for each word and each inequality of the rules of inference (docs/rules/inference.md), in their order."""

from inference_rows import NAMED, NONE, SHAPE, Row, coord, named, raw, rows, var

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
    *rows("""
strings do not vote -- strings have no vote
    x run=6 f=3; r run=6; other:string cell=90 g=4 -> run=6; unbatched other
times do not vote -- times have no vote
    x run=6 f=3; r run=6; other:time cell=90 g=4 -> run=6; unbatched other
objects do not vote -- objects have no vote
    x run=6 f=3; r run=6; other:object cell=90 g=4 -> run=6; unbatched other
coordinates do not vote -- coordinates have no vote
    x run=6 f=3; r run=6; @other cell=90 g=4 -> run=6; unbatched other
empty arrays do not vote -- no elements, no vote
    x run=6 f=3; r run=6; other rec=0+ g=4 -> run=6; unbatched other
"""),
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
    *rows("""
the word of a measure is no variable -- a voter that happens to be called like the word votes
    x run=6 f=3 {"cell_measures": "word: other"}; r run=6; other cell=90 g=4; word run=6 f=3
    -> run=6; unbatched other; lower case
coordinates that the group names -- the attribute of a group refers to it
    x run=6 f=3; r run=6; other cell=90 g=4
    -> run=6; unbatched other; group_attrs {"": {"coordinates": "lat other"}}; lower case
what two attributes refer to -- the first that refers to it is named
    x run=6 f=3 {"bounds": "other"}; r run=6; other cell=90 g=4; z run=6 {"coordinates": "other", "grid_mapping":
    "other"}
    -> run=6; unbatched other; lower case
attributes that are no text -- they refer to nothing
    x run=6 f=3 {"bounds": 3, "coordinates": null, "units": 5, "axis": 1}; r run=6 -> run=6; lower case
"""),
    Row(
        "a group of an encoding that is no text",
        [raw("m/a", 30, 2), raw("m/b", 30)],
        [(None, 30)],
        "bytes that are no UTF-8 are no encoding",
        SHAPE,
        group_attrs={("m",): {"encoding-type": b"csr\xff"}},
    ),
    *rows("""
a grid mapping with a colon -- CF lets a grid mapping name its coordinates
    x run=6 f=3 {"grid_mapping": "other: lat lon"}; r run=6; other cell=90 g=4 -> run=6; unbatched other; lower case
"""),
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
    *rows("""
a group of another encoding -- a data frame is no sparse matrix
    m/a =30 =2; m/b =30 -> =30 [shared shape]; group_attrs {"m": {"encoding-type": "dataframe"}}
"""),
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
    *rows("""
columns and bounds in another case -- names are compared without case
    id =4; w =4 =2; Hits =900; hits_Offsets =5 -> =4 [shared shape]; unbatched Hits hits_Offsets
a scalar beside its index -- a scalar is not cut
    id =4; w =4 =2; x; x_index =4 -> =4 [shared shape]; unbatched x
a column that is cut by counts and by bounds -- the counts vote, the bounds do not
    id =4; w =4 =2; x =900; x_counts =4; x_offsets =5 -> =4 [shared shape]; unbatched x x_offsets
text that is cut into rows -- the bounds do not vote
    id =4; w =4 =2; x:string =900; x_offsets =5 -> =4 [shared shape]; unbatched x x_offsets
bounds as long as their values -- a partner of the same length cuts nothing
    x =5 =2; x_offsets =5 -> =5 [shared shape]
the group of an episode beside the lengths of its episodes
    -- nothing but the lengths has one entry for each episode, so the columns are the data
    episode/obs =60 =4; episode/act =60 =2; episode/rew =60; episode_lengths =3
    -> =60 [shared shape]; unbatched episode_lengths; groups {"episode": [60]}
floating point offsets beside data -- floats are no bounds
    x =900 =2; y =900; ~x_offsets =5 -> =900 [shared shape]; unbatched x_offsets
floating point lengths beside values -- floats count nothing
    values =90 =2; mask =90; ~lengths =3 -> =90 [shared shape]; unbatched lengths
images with an index of some of them -- labels have a row for each image, and nothing has five rows
    image =60 =8 =8; label =60; image_index =5 -> =60 [shared shape]; unbatched image_index
photons with the counts of each channel -- the counts are as long as the second axis of what they count
    photon =100 =64; time =100; photon_counts =64 -> =100 [shared shape]; unbatched photon_counts
photons with counts and wavelengths of each channel -- an array as long as they are does not make channels rows
    photon =100 =64; time =100; photon_counts =64; wavelength =64
    -> =100 [shared shape]; unbatched photon_counts wavelength
a table of counts is no partner -- a partner has one dim
    x =900 =2; y =900; x_counts =4 =2 -> =900 [shared shape]; unbatched x_counts
counts longer than what they count -- x has fewer rows than there are counts, so nothing is cut
    x =4 =500; name:string =4; x_counts =900 -> =4 [shared shape]; unbatched x_counts
a lookup table and its index -- a table that is looked up is no main array
    x =4 =2; x_index =900 -> =900 [shared shape]; unbatched x
two ragged columns of one length -- each has a partner, so neither speaks for the length of the other
    x =900; x_index =4; w =900; w_index =4 -> =4 [shared shape]; unbatched x w
"""),
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
    *rows("""
columns with a common prefix and offsets of other rows -- no array has 100 rows
    jet_pt =700; jet_eta =700; jet_offsets =101; met =90 -> =700 [shared shape]; unbatched jet_offsets met
columns with a common prefix among columns of their length -- they are no table of their own
    jet_pt =700; other =700; jet_offsets =101; met =100 -> =700 [shared shape]; unbatched jet_offsets met
"""),
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
    *rows("""
offsets and values of a table of four columns -- a table may have columns of such names: more than three members are no ragged column
    offsets =40; values =80; a =40 =3; b =40 -> =40 [shared shape]; unbatched values
columns of a group that is cut -- the group is cut by hits_offsets
    id =4; w =4 =2; hits/e =900; hits/t =900; hits_offsets =5
    -> =4 [shared shape]; unbatched hits/e hits/t hits_offsets
"""),
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
    *rows("""
a group that starts with an underscore -- not every underscore is private
    table/x =50 =2; table/y =50; _own/a =900 =2; _own/b =900 -> none; groups {"_own": [900]}
"""),
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
    *rows("""
as many numbers elsewhere as in front -- time leads 24 numbers and 24 have it elsewhere: it does not lead more
    a time=6 p=4; b run=4 time=6 -> run=4; unbatched a
one number more in front than elsewhere -- 30 against 24
    a time=6 p=4; b run=4 time=6; c time=6 -> time=6; either b
exactly half of the numbers -- 24 of 48 numbers are at least half
    a run=4 p=3 q=2; b x=24 -> run=4; unbatched b
one number less than half -- 24 of 49: more would be left out than taken
    a run=4 p=3 q=2; b x=25 -> none
three dims without a majority -- a mesh of several kinds of elements
    a p=5 f=2 g=2; b q=16; c r=15 -> none
a time of lower rank that leads most of the numbers -- 90 of 114 numbers
    a time=90; b run=4 p=3 q=2 -> time=90; unbatched b
a time of lower rank with exactly half of the numbers -- neither the highest rank nor most of the numbers
    a time=24; b run=4 p=3 q=2 -> run=4; unbatched a
arrays led by space do not count for the rank -- a mask in three dims
    a time=5 f=2; b z=9 y=9 x=9 -> time=5; unbatched b
"""),
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
    *rows("""
the numbers of unnamed arrays do not count against a name -- 10 of 16 named numbers; the unnamed ones are no majority
    a run=5 f=2; b lat=6; w =7 =1 -> run=5; unbatched b w
unnamed arrays that share nothing leave it to the names -- one unnamed array has no majority of two
    a run=5 f=2; w =90 =9 -> run=5; unbatched w
a dim that could be the batch comes second before a time that could not
    -- the highest rank; run leads more numbers, date is a time of neither
    a time=4 p=2 q=2; b date=3; c run=9 f=3 -> time=4; unbatched b c
a marked dim before an unlimited one -- marked first
    a batch_0=4 f=3; b rec=9+ g=3 -> batch_0=4; unbatched b; lower case
an unlimited dim before a time -- unlimited before time-like
    a rec=9+ f=3; b time=40 g=30; @time:time time=40 -> rec=9 [unlimited dim]; unbatched b time
"""),
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

FURTHER_DIMS = rows("""
unnamed arrays with almost half of the numbers -- 8 of 18 numbers are no majority
    a run=5 f=2; v =4; w =4 =1 -> run=5; unbatched v w
unnamed arrays with more than half of the numbers -- 12 of 22 numbers
    a run=5 f=2; v =6; w =6 =1 -> =6 [shared shape]; unbatched a
five next dims -- the arrays do not agree
    a0 run=4 mode0=3 lat=5; a1 run=4 mode1=3 lat=5; a2 run=4 mode2=3 lat=5; a3 run=4 mode3=3 lat=5; a4 run=4 mode4=3
    lat=5
    -> run=4
a static field with a dim that is no space -- f is no space, so m has no say for 'without time'
    a run=4 time=3 f=2 lat=5; m run=4 f=2 -> run=4
a static field over space that no other has -- lon stands behind no time
    a run=4 time=3 lat=5; m run=4 lon=6 -> run=4
a series for each run -- nothing is left of m, so it is no field
    a run=4 time=3 lat=5; m run=4 -> run=4
the next dim elsewhere -- m has time elsewhere
    a run=4 time=3 lat=5; m time=3 lat=5 -> run=4; unbatched m
two next dims -- the arrays do not agree
    a run=4 time=3 lat=5; m run=4 mode=3 lat=5 -> run=4
three dims -- a static field for each member
    a run=4 member=2 time=3 lat=5; m run=4 member=2 lat=5 -> run=4 member=2 time=3; partial m
""")

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
    *rows("""
x_rho beside y_rho -- a pair in one array
    a x_rho=4 y_rho=3; b x_rho=4 -> none
x_rho beside y_v -- a pair in one array
    a x_rho=4 y_v=3; b x_rho=4 -> none
x_a beside x_b -- no y beside them
    a x_a=4 x_b=3; b x_a=4 -> x_a=4
x_a and y_a in different arrays -- no pair in one array
    a x_a=4 f=3; b y_a=2 -> x_a=4; unbatched b
dim_5 of size 5 -- made up
    a dim_5=5 f=3; b dim_5=5 -> none; lower case
dim_5 of size 6 -- xarray counts axes
    a dim_5=6 f=3; b dim_5=6 -> dim_5=6; lower case
dim_5 of size 6 in the first of two arrays -- it is longer than its number somewhere
    a dim_5=6 f=3; b dim_5=2 -> dim_5=6; either b; lower case
g.lat is a feature dim -- lat of a group g
    a g.lat=4 f=3; b g.lat=4 -> none
dim_5_1 of size 5 -- made up
    a dim_5_1=5 f=3; b dim_5_1=5 -> none; lower case
no rows under a name of xarray's own -- dim_1 is longer than its number, so xarray counted the axes
    a dim_0=0 dim_1=4; b dim_0=0 -> dim_0=0; lower case
one row under a name of xarray's own, transposed -- dim_0 is longer than its number
    a dim_1=1 dim_0=4; b dim_1=1 -> dim_1=1; lower case
a made-up axis beside a name of xarray's own -- no array of two axes has a third
    a dim_0=9 dim_2=2; b dim_0=9 -> dim_0=9; lower case
"""),
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
    *rows("""
a spatial variable that is no index marks no dim -- the latitude of a cast is no dim of space
    a cast=4 f=3; b cast=4; @lat cast=4 {lat} -> cast=4
a grid of unknown names by the longitude alone -- a voter has a dim in front of its dims
    a run=2 row=4 col=3; @tlong row=4 col=3 {lon} -> run=2; unbatched tlong
"""),
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
    *rows("""
two-dimensional coordinates that are neither latitude nor longitude -- no grid
    a run=2 row=4 col=3; b run=2 row=4; @heading row=4 col=3 -> run=2 row=4; partial heading
a grid with half of the numbers behind another dim -- 24 of 48 numbers
    a run=2 row=4 col=3; b row=4 col=3; c row=4 col=3; @tlat row=4 col=3 {lat}; @tlong row=4 col=3 {lon}
    -> run=2; unbatched b c tlat tlong
a swath with less than half of the numbers behind another dim -- 24 of 60 numbers: the rows and columns are a swath
    a run=2 row=4 col=3; b row=4 col=3 f=3; @tlat row=4 col=3 {lat}; @tlong row=4 col=3 {lon} -> row=4
a selection of no rows of a grid -- a grid without elements is still one
    a run=0 row=4 col=3 f=2; b run=0 row=4 col=3; @tlat row=4 col=3 {lat}; @tlong row=4 col=3 {lon}
    -> run=0; unbatched tlat tlong
a latitude over three dims -- a latitude of every run is no grid
    a run=2 row=4 col=3 f=2; b run=2 row=4 col=3; @lat2 run=2 row=4 col=3 {lat} -> run=2 row=4 col=3
a swath whose voters have no dim in front -- a swath, not a grid
    a row=4 col=3 band=2; b row=4; @lat row=4 col=3 {lat}; @lon row=4 col=3 {lon} -> row=4
a repeated dim leads nothing -- a dim that one array repeats is a feature
    k cell=5 cell=5; a cell=5 f=90 -> none
"""),
]

SHAPES = rows("""
two of three arrays with exactly half of the elements -- 12 of 24 elements are no majority
    a =4 =2; b =4; c =3 =4 -> none
two of three arrays with one element more than half -- 12 of 23 elements
    a =4 =2; b =4; c =11 -> =4 [shared shape]; unbatched c
one array with most of the elements -- a majority needs two arrays
    a =9 =9; c =11 -> none
text makes a majority of two -- strings count here
    a =9 =9; n:string =9; c =11 -> =9 [shared shape]; unbatched c
times make a majority of two -- datetimes count here
    a =9 =9; n:time =9; c =11 -> =9 [shared shape]; unbatched c
scalars do not count for a majority -- a scalar has no leading size
    a =9 =9; n; c =11 -> none
a table of text -- a group of nothing but text
    t/a:string =7; t/b:string =7 -> =7 [shared shape]; groups {"t": [7]}
a table of text beside numbers -- text does not vote
    t/a:string =7; t/b:string =7; n/x =9 =2; n/y =9 -> =9 [shared shape]; unbatched t/a t/b; groups {"n": [9]}
a table of text with names that this package gave -- its names say no more than shapes
    a:string batch_0=7; b:string batch_0=7 -> batch_0=7 [shared shape]; lower case
a table of text with names -- names are not shapes
    a:string row=7; b:string row=7 -> none
a named second axis -- the first axes have no names
    a =6 f=3; b =6 -> =6 [shared shape]
""")

GROUPS = rows("""
a small array that agrees with almost half of the numbers -- 45 of 108 numbers
    own =5; g/a =5 =9; h/a =7 =9 -> none; groups {"g": [5], "h": [7]}
a small array that agrees with exactly half of the numbers -- 45 of 90 numbers are not most of them
    own =5; g/a =5 =9; h/a =9 =5 -> none; groups {"g": [5], "h": [9]}
a small array that agrees with a little more than half -- 50 of 95 numbers
    own =5; g/a =5 =10; h/a =9 =5 -> =5 [shared shape]; unbatched h/a
groups of one size over different dims -- the names differ
    g/x a=5 f=3; g/z a=5; h/y b=5 f=2; h/z b=5 -> none; groups {"g": [5], "h": [5]}
groups of one size, one of them without names -- a name says nothing against an axis without one
    g/x a=5 f=3; g/z a=5; h/y =5 =2; h/z =5 -> a=5
groups that share the first of two dims -- as much as all of them share
    g/x =5 =4 =3; g/z =5 =4; h/y =5 =2; h/z =5 -> =5 [shared shape]
a selection of no rows -- the mask is the only array with elements; the names of all decide
    x time=0 lat=3; m lat=3 -> time=0; unbatched m
a lone array with a tenth of the numbers -- 10 of 100 numbers are not small
    own =10; g/a =15 =3; g/b =15 =3 -> =10 [shared shape]; unbatched g/a g/b
a lone array with less than a tenth -- 10 of 101 numbers; the groups share nothing
    own =10; g/a =15 =3; g/b =23 =2 -> none; groups {"g": []}
two small arrays that agree -- 6 of 406 numbers: the group is asked
    own =3; too =3; g/a =100 =3; g/b =100 -> =100 [shared shape]; unbatched own too
two arrays that agree with a tenth of the numbers -- 10 of 100 numbers are not small
    own =5; too =5; g/a =15 =3; g/b =15 =3 -> =5 [shared shape]; unbatched g/a g/b
two small arrays that agree beside groups that do not -- nothing speaks against them
    own =3; too =3; g/a =100 =3; h/a =90 =3 -> =3 [shared shape]; unbatched g/a h/a
camera matrices of one size beside the frames -- 21 of 25621 numbers
    K =3 =3; P =3 =4; left/depth =200 =8 =8; right/depth =200 =8 =8 -> =200 [shared shape]; unbatched K P
axes of a grid in a group beside the fields -- the axes do not agree on a batch, so they take none from the fields
    dimensions/t =11; dimensions/x =8; dimensions/y =8; t0/rho =4 =11 =8 =8; t1/v =4 =11 =8 =8 =2
    -> =4 [shared shape]; unbatched dimensions/t dimensions/x dimensions/y
constants in a group beside the fields -- the constants share nothing
    constants/a =3; constants/b =2; data/x =20 =8; data/y =20
    -> =20 [shared shape]; unbatched constants/a constants/b
a group that shares nothing with a tenth of the numbers -- 10 of 100 numbers are not small
    c/a =3; c/b =7; data/x =10 =8; data/y =10 -> none; groups {"c": [], "data": [10]}
a small group with a batch of its own beside a large one -- rows and episodes are both batches
    meta/ends =4; data/x =90 =8; data/y =90 -> none; groups {"meta": [4], "data": [90]}
two small arrays that share nothing -- the groups are asked
    own =3; too =2; g/a =100 =3; g/b =100 -> =100 [shared shape]; unbatched own too
a small lone array that agrees with most -- nothing is overruled
    own =50; g/a =50 =30; h/a =1 =9 -> =50 [shared shape]; unbatched h/a
a small lone array that agrees with less than half -- most numbers are in groups of another size
    own =5; g/a =5 =10; h/a =7 =90 -> none; groups {"g": [5], "h": [7]}
siblings of equal names and other sizes -- the groups have batches over the same dims
    p/mu chain=2 draw=5; p/th chain=2 draw=5 s=3; q/th chain=1 draw=5 s=3 -> none; groups {"p": [2, 5], "q": [1, 5]}
a sibling that has less -- one of them stops at chain by itself
    p/mu chain=2 f=5; q/th chain=2 f=5 s=3; q/r chain=2 -> chain=2; groups {"p": [2], "q": [2]}
a sibling whose arrays do not go on with the dim -- q has no draws
    p/mu chain=2 draw=5; p/th chain=2 draw=5 s=3; q/r chain=2 -> chain=2; groups {"p": [2], "q": [2]}
a small group with a longer batch than the group beside it -- all arrays of the small group lead with its batch, so it counts
    g/x =4 =3 =2; g/y =4 =3; h/a =4 =900; h/b =4 =900 =2 -> =4 [shared shape]
a selection of no rows beside a coordinate of another dim -- only the mask has elements, and the coordinate has no vote
    x time=0 lat=3 lon=4; mask lat=3 lon=4; @c q=5 -> time=0; unbatched mask c
groups without voters do not count -- b and c have no voters
    a/x =9 =2; a/y =9; b/name:string =4; c/s -> =9 [shared shape]; unbatched b/name c/s
""")

WHO_CUTS_WHAT = rows("""
arrays without names that hold two fifths of the numbers -- less than half of the numbers have no names
    a row=10 f=3; b row=10 f=3; c =20 =2 -> row=10; unbatched c
two arrays of as many numbers that share nothing -- neither is the main array
    a =4 =3; b =6 =2 -> none
counts beside an array that is as long as what they cut -- x has the rows of the counts
    times =900; times_lengths =4; x =4 =900; y =900 -> =4 [shared shape]; unbatched times y
two columns of one length, with counts of two lengths -- both are cut, each by its own
    a =900; a_lengths =4; b =900; b_lengths =5 -> none
bounds of rows of one element each -- one entry more than rows
    x =5; x_offsets =6 -> none
one bound too many -- these are no bounds of five rows
    x =5; x_offsets =7 -> none
an array called n beside names that begin with an underscore -- n counts nothing that has a name
    n =4; _a =900; _b =900; y =4 -> =900 [shared shape]; unbatched n y
counts of an array that is there, beside columns of its name -- njet counts the jets that jet has
    njet =4; jet =4 =2; jet_pt =900; jet_eta =900 -> =900 [shared shape]; unbatched njet jet
""")

RULES = [*NO_VOTE, *FIRST_DIM, *FURTHER_DIMS, *FEATURES, *SHAPES, *GROUPS, *WHO_CUTS_WHAT]
