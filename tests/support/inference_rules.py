"""One row for each word and each inequality of the rules of inference (docs/rules/inference.md), in their order."""

import json

import inference_rows
from inference_fields import FIELDS
from inference_practice import FAULTS, GUARDS, PRACTICE
from inference_rows import rows

NO_VOTE = rows("""
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
what bounds refers to does not vote -- bounds refers to it
    x run=6 f=3 {"bounds": "other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other
what climatology refers to does not vote -- climatology refers to it
    x run=6 f=3 {"climatology": "other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other
what coordinates refers to does not vote -- coordinates refers to it
    x run=6 f=3 {"coordinates": "other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other
what ancillary_variables refers to does not vote -- ancillary_variables refers to it
    x run=6 f=3 {"ancillary_variables": "other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other
what grid_mapping refers to does not vote -- grid_mapping refers to it
    x run=6 f=3 {"grid_mapping": "other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other
what cell_measures refers to does not vote -- cell_measures holds pairs
    x run=6 f=3 {"cell_measures": "word: other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other; lower case
what formula_terms refers to does not vote -- formula_terms holds pairs
    x run=6 f=3 {"formula_terms": "word: other"}; r run=6; other cell=90 g=4 -> run=6; unbatched other; lower case
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
a group of an encoding that is no text -- bytes that are no UTF-8 are no encoding
    m/a =30 =2; m/b =30 -> =30 [shared shape]; group_attrs {"m": {"encoding-type": "bytes:csrÿ"}}
a grid mapping with a colon -- CF lets a grid mapping name its coordinates
    x run=6 f=3 {"grid_mapping": "other: lat lon"}; r run=6; other cell=90 g=4 -> run=6; unbatched other; lower case
a group of encoding csr_matrix -- its attribute says that it is a sparse matrix
    m/data =90; m/odd =30 =2; m/also =30
    -> none; groups {"m": []}; group_attrs {"m": {"encoding-type": "csr_matrix"}}
a group of encoding csc_matrix -- its attribute says that it is a sparse matrix
    m/data =90; m/odd =30 =2; m/also =30
    -> none; groups {"m": []}; group_attrs {"m": {"encoding-type": "csc_matrix"}}
a group of encoding csr -- its attribute says that it is a sparse matrix
    m/data =90; m/odd =30 =2; m/also =30 -> none; groups {"m": []}; group_attrs {"m": {"h5sparse_format": "csr"}}
a group of encoding b'csc' -- its attribute says that it is a sparse matrix
    m/data =90; m/odd =30 =2; m/also =30
    -> none; groups {"m": []}; group_attrs {"m": {"h5sparse_format": "bytes:csc"}}
a group of another encoding -- a data frame is no sparse matrix
    m/a =30 =2; m/b =30 -> =30 [shared shape]; group_attrs {"m": {"encoding-type": "dataframe"}}
X and X_index -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_index =4 -> =4 [shared shape]; unbatched x
X and X_length -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_length =4 -> =4 [shared shape]; unbatched x
X and X_lengths -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_lengths =4 -> =4 [shared shape]; unbatched x
X and X_row_lengths -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_row_lengths =4 -> =4 [shared shape]; unbatched x
X and X_lens -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_lens =4 -> =4 [shared shape]; unbatched x
X and X_counts -- the partner has one entry for each row, so it votes, and x is cut
    id =4; w =4 =2; x =900; x_counts =4 -> =4 [shared shape]; unbatched x
X and X_offsets -- the partner has one entry more than rows, so neither votes
    id =4; w =4 =2; x =900; x_offsets =5 -> =4 [shared shape]; unbatched x x_offsets
X and X_splits -- the partner has one entry more than rows, so neither votes
    id =4; w =4 =2; x =900; x_splits =5 -> =4 [shared shape]; unbatched x x_splits
X and X_row_splits -- the partner has one entry more than rows, so neither votes
    id =4; w =4 =2; x =900; x_row_splits =5 -> =4 [shared shape]; unbatched x x_row_splits
X and X_indptr -- the partner has one entry more than rows, so neither votes
    id =4; w =4 =2; x =900; x_indptr =5 -> =4 [shared shape]; unbatched x x_indptr
X and X_ptr -- the partner has one entry more than rows, so neither votes
    id =4; w =4 =2; x =900; x_ptr =5 -> =4 [shared shape]; unbatched x x_ptr
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
columns with a common prefix and jet_offsets -- met and label have the rows that the jets are cut into
    jet_pt =700; jet_eta =700; jet_offsets =101; met =100; label =100
    -> =100 [shared shape]; unbatched jet_pt jet_eta jet_offsets
columns with a common prefix and nJet -- met and label have the rows that the jets are cut into
    jet_pt =700; jet_eta =700; nJet =100; met =100; label =100 -> =100 [shared shape]; unbatched jet_pt jet_eta
columns with a common prefix and offsets of other rows -- no array has 100 rows
    jet_pt =700; jet_eta =700; jet_offsets =101; met =90 -> =700 [shared shape]; unbatched jet_offsets met
columns with a common prefix among columns of their length -- they are no table of their own
    jet_pt =700; other =700; jet_offsets =101; met =100 -> =700 [shared shape]; unbatched jet_offsets met
flattened_data beside cumulative_length -- the partner has one entry for each row
    g/cumulative_length =50; g/flattened_data =193
    -> =50 [shared shape]; unbatched g/flattened_data; groups {"g": [50]}
values beside lengths -- the partner has one entry for each row
    g/lengths =50; g/values =193 -> =50 [shared shape]; unbatched g/values; groups {"g": [50]}
content beside offsets -- neither votes; a mask as long as the values does
    g/offsets =51; g/content =193; g/mask =193 -> =193 [shared shape]; unbatched g/offsets; groups {"g": [193]}
values beside offsets -- neither votes; a mask as long as the values does
    g/offsets =51; g/values =193; g/mask =193 -> =193 [shared shape]; unbatched g/offsets; groups {"g": [193]}
data beside offsets -- neither votes; a mask as long as the values does
    g/offsets =51; g/data =193; g/mask =193 -> =193 [shared shape]; unbatched g/offsets; groups {"g": [193]}
values beside row_splits -- neither votes; a mask as long as the values does
    g/row_splits =51; g/values =193; g/mask =193 -> =193 [shared shape]; unbatched g/row_splits; groups {"g": [193]}
flat_values beside row_splits -- neither votes; a mask as long as the values does
    g/row_splits =51; g/flat_values =193; g/mask =193
    -> =193 [shared shape]; unbatched g/row_splits; groups {"g": [193]}
offsets and values of a table of four columns -- a table may have columns of such names: more than three members are no ragged column
    offsets =40; values =80; a =40 =3; b =40 -> =40 [shared shape]; unbatched values
columns of a group that is cut -- the group is cut by hits_offsets
    id =4; w =4 =2; hits/e =900; hits/t =900; hits_offsets =5
    -> =4 [shared shape]; unbatched hits/e hits/t hits_offsets
the group #refs# -- it is the format's own
    table/x =50 =2; table/y =50; #refs#/a =900 =2; #refs#/b =900 -> =50 [shared shape]; unbatched #refs#/a #refs#/b
the group #subsystem# -- it is the format's own
    table/x =50 =2; table/y =50; #subsystem#/a =900 =2; #subsystem#/b =900
    -> =50 [shared shape]; unbatched #subsystem#/a #subsystem#/b
the group .hidden -- it is the format's own
    table/x =50 =2; table/y =50; .hidden/a =900 =2; .hidden/b =900
    -> =50 [shared shape]; unbatched .hidden/a .hidden/b
the group _i_table -- it is the format's own
    table/x =50 =2; table/y =50; _i_table/a =900 =2; _i_table/b =900
    -> =50 [shared shape]; unbatched _i_table/a _i_table/b
a group that starts with an underscore -- not every underscore is private
    table/x =50 =2; table/y =50; _own/a =900 =2; _own/b =900 -> none; groups {"_own": [900]}
a group of CLASS TINDEX -- it is a search index of PyTables
    table/x =50 =2; table/y =50; search/a =900 =2; search/b =900
    -> =50 [shared shape]; unbatched search/a search/b; group_attrs {"search": {"CLASS": "TINDEX"}}
a group of CLASS b'INDEX' -- it is a search index of PyTables
    table/x =50 =2; table/y =50; search/a =900 =2; search/b =900
    -> =50 [shared shape]; unbatched search/a search/b; group_attrs {"search": {"CLASS": "bytes:INDEX"}}
""")

FIRST_DIM = rows("""
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
4 arrays over dims of their own -- none leads half of the numbers
    a0 p0=4 f=3; a1 p1=5 f=3; a2 p2=6 f=3; a3 p3=7 f=3 -> none
5 arrays over dims of their own -- none leads half of the numbers
    a0 p0=4 f=3; a1 p1=5 f=3; a2 p2=6 f=3; a3 p3=7 f=3; a4 p4=8 f=3 -> none
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
a dim called time -- a time by its plain name
    a run=9 f=3; b time=4 g=3 -> time=4; unbatched a
a dim called T -- a time by its plain name
    a run=9 f=3; b T=4 g=3 -> T=4; unbatched a
a dim called Date -- a time by its plain name
    a run=9 f=3; b Date=4 g=3 -> Date=4; unbatched a
a dim called datetime -- a time by its plain name
    a run=9 f=3; b datetime=4 g=3 -> datetime=4; unbatched a
a dim whose coordinate has {'axis': 'T'} -- a time by its coordinate
    a run=9 f=3; b stamp=4 g=3; @stamp stamp=4 {"axis": "T"} -> stamp=4; unbatched a
a dim whose coordinate has {'standard_name': 'time'} -- a time by its coordinate
    a run=9 f=3; b stamp=4 g=3; @stamp stamp=4 {"standard_name": "time"} -> stamp=4; unbatched a
a dim whose coordinate has {'units': 'days since 2000-01-01'} -- a time by its coordinate
    a run=9 f=3; b stamp=4 g=3; @stamp:object stamp=4 {"units": "days since 2000-01-01"} -> stamp=4; unbatched a
a dim whose coordinate has {} -- a time by its coordinate
    a run=9 f=3; b stamp=4 g=3; @stamp:time stamp=4 -> stamp=4; unbatched a
""")

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


def each(values, text):
    """A row for each value: ``{0}`` in the text stands for it, ``{1}`` for its JSON."""
    return rows("\n".join(text.format(value, json.dumps(value)) for value in values))


FEATURE_NAMES = (
    "lat lon latitude longitude x y z i j k xc yc eta_rho xi_u s_rho s_w nav_lev south_north south_north_stag west_east "
    "west_east_stag bottom_top bottom_top_stag lev level plev height depth depth_2 dep deptht deptu deptv deptw altitude pressure "
    "layer nz nz1 nz_1 c channel channels band wavelength variable feature features bnds bounds nv vertices strlen"
).split()
NO_FEATURE_NAMES = (
    "lats xx department deptx height2 images channel_id s_x nzx etas xis navy south west x_train y_pos".split()
)

FEATURES = [
    *each(FEATURE_NAMES, "{0} is a feature dim -- by its name\n a {0}=4 f=3; b {0}=4 -> none"),
    *each(NO_FEATURE_NAMES, "{0} is no feature dim -- names are compared as a whole\n a {0}=4 f=3; b {0}=4 -> {0}=4"),
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
    *each(
        [
            *[{"axis": axis} for axis in ("X", "y", "Z")],
            *[{"standard_name": name} for name in ("latitude", "projection_x_coordinate", "air_pressure")],
            *[{"units": unit} for unit in ("degrees_north", "Degree_East")],
            *[{"positive": way} for way in ("up", "down")],
            *[{"units": unit} for unit in ("hPa", "Pa", "mbar", "millibar", "dbar")],
        ],
        "a coordinate with {0} -- CF marks the dim as space\n a row=4 f=3; b row=4; @row row=4 {1} -> none; lower case",
    ),
    *rows("""
a coordinate with {'axis': 'T'} is no space -- CF does not mark the dim
    a row=4 f=3; b row=4; @row row=4 {"axis": "T"} -> row=4
a coordinate with {'units': 'degrees'} is no space -- CF does not mark the dim
    a row=4 f=3; b row=4; @row row=4 {"units": "degrees"} -> row=4
a coordinate with {'standard_name': 'wind_speed'} is no space -- CF does not mark the dim
    a row=4 f=3; b row=4; @row row=4 {"standard_name": "wind_speed"} -> row=4
a coordinate with {'positive': 'left'} is no space -- CF does not mark the dim
    a row=4 f=3; b row=4; @row row=4 {"positive": "left"} -> row=4
a spatial variable that is no index marks no dim -- the latitude of a cast is no dim of space
    a cast=4 f=3; b cast=4; @lat cast=4 {lat} -> cast=4
a grid of unknown names by the longitude alone -- a voter has a dim in front of its dims
    a run=2 row=4 col=3; @tlong row=4 col=3 {lon} -> run=2; unbatched tlong
a grid by {'standard_name': 'latitude'} -- one attribute is enough
    a run=2 row=4 col=3; @tl row=4 col=3 {"standard_name": "latitude"} -> run=2; unbatched tl
a grid by {'standard_name': 'longitude'} -- one attribute is enough
    a run=2 row=4 col=3; @tl row=4 col=3 {"standard_name": "longitude"} -> run=2; unbatched tl
a grid by {'units': 'degrees_north'} -- one attribute is enough
    a run=2 row=4 col=3; @tl row=4 col=3 {"units": "degrees_north"} -> run=2; unbatched tl
a grid by {'units': 'degreeE'} -- one attribute is enough
    a run=2 row=4 col=3; @tl row=4 col=3 {"units": "degreeE"} -> run=2; unbatched tl
a grid by the name lat -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @lat row=4 col=3 -> run=2; unbatched lat
a grid by the name Latitude -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @Latitude row=4 col=3 -> run=2; unbatched Latitude
a grid by the name nav_lat -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @nav_lat row=4 col=3 -> run=2; unbatched nav_lat
a grid by the name XLAT -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @XLAT row=4 col=3 -> run=2; unbatched XLAT
a grid by the name lon -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @lon row=4 col=3 -> run=2; unbatched lon
a grid by the name longitude -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @longitude row=4 col=3 -> run=2; unbatched longitude
a grid by the name nav_lon -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @nav_lon row=4 col=3 -> run=2; unbatched nav_lon
a grid by the name xlong -- a latitude or longitude by its plain name
    a run=2 row=4 col=3; @xlong row=4 col=3 -> run=2; unbatched xlong
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
ROWS = [*inference_rows.ROWS, *FAULTS, *PRACTICE, *GUARDS, *RULES, *FIELDS]
"""The whole table."""
