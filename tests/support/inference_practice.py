"""Rows for the table of inference: faults that were found, layouts from practice, and guards of single conditions."""

from inference_rows import rows

FAULTS = rows("""
xarray's own dim names -- dim_0 is longer than its number, so no engine made it up
    obs dim_0=100 dim_1=3; reward dim_0=100 -> dim_0=100; lower case
a made-up axis after a selection -- dim_5 is at most 5 long: made up, and cut since
    x time=6 dim_5=2; m dim_5=2 -> time=6; unbatched m; lower case
members with a mask each -- a field of space without time has no say against time
    t2m member=3 time=6 latitude=4 longitude=5; lsm member=3 latitude=4 longitude=5; @time:time time=6
    -> member=3 time=6; partial lsm time
a mask larger than the series -- space-led fields do not count against a time
    mask z=33 y=180 x=360; q time=50 station=4; @time:time time=50 -> time=50; unbatched mask
a small table of higher rank -- time leads most of the numbers
    t2m time=1000 cell=8; lut a=3 b=3 c=3 -> time=1000; unbatched lut
a time that one small array has elsewhere -- time leads more numbers than have it elsewhere
    t2m time=100 lat=3 lon=5; eof mode=2 time=100; @time:time time=100; grid lat lon
    -> time=100; unbatched lat lon; either eof
departments -- dep* is not depth*
    a department=5 f=3; b department=5 -> department=5
x_train is no space -- x_* is space only beside its y_*
    a x_train=5 f=3; b x_train=5 -> x_train=5
a staggered grid -- x_u stands beside y_u
    u ocean_time=4 y_u=5 x_u=6; v ocean_time=4 y_v=5 x_v=6 -> ocean_time=4
one staggered map -- x_rho stands beside y_rho, space leads
    h y_rho=5 x_rho=6 -> none
units with spikes -- spike_times is cut into rows by spike_times_index
    id =4; waveform_mean =4 =29; spike_times =34057; spike_times_index =4
    -> =4 [shared shape]; unbatched spike_times
doubly ragged -- w_index is cut as well
    id =4; w =900 =8; w_index =90; w_index_index =4 -> =4 [shared shape]; unbatched w w_index
values with an axis as long as the lengths -- an axis of their own is no number of rows
    lengths =4; values =900 =4 -> none
events with a jagged column -- flattened_data is cut by cumulative_length
    evt/energy =50; evt/n =50; evt/t0/cumulative_length =50; evt/t0/flattened_data =193
    -> =50 [shared shape]; unbatched evt/t0/flattened_data; groups {"evt": [50], "evt/t0": [50]}
cells of text in MATLAB -- #refs# is MATLAB's own
    #refs#/a =7 =1; #refs#/b =7 =1; cell:object =1 =2 -> none; groups {"#refs#": []}
a sparse matrix of MATLAB -- data, ir and jc are a CSC matrix
    S/data =20; S/ir =20; S/jc =21 -> none; groups {"S": []}
a sparse matrix of 10x -- more members beside the three
    m/data =90; m/indices =90; m/indptr =12; m/shape =2; m/barcodes:string =11 -> none; groups {"m": []}
an index of PyTables -- _i_table is the format's own
    df/table/values =116 =8; df/_i_table/index/indicesLR =131072
    -> =116 [shared shape]; unbatched df/_i_table/index/indicesLR
""")

PRACTICE = rows("""
GraphCast training -- static fields lack both
    2m_temperature batch=1 time=3 lat=5 lon=8; temperature batch=1 time=3 level=4 lat=5 lon=8;
    toa_incident_solar_radiation batch=1 time=3 lat=5 lon=8; geopotential_at_surface lat=5 lon=8; land_sea_mask
    lat=5 lon=8; @datetime:time batch=1 time=3; @time:time time=3; @level level=4; @lat lat=5 {lat}; @lon lon=8
    {lon}
    -> batch=1 time=3; unbatched geopotential_at_surface land_sea_mask level lat lon; partial time
MPAS, nCells first, no time -- cells lead most of the numbers
    temperature nCells=40 nVertLevels=6; areaCell nCells=40; verticesOnCell nCells=40 maxEdges=6; cellsOnEdge
    nEdges=120 TWO=2; latCell nCells=40
    -> nCells=40; unbatched cellsOnEdge
CMIP6 DAMIP ensemble -- three dims in front of space
    tas experiment=3 member_id=5 time=12 lat=4 lon=6; areacella lat=4 lon=6; time_bnds:time time=12 bnds=2;
    @time:time time=12; @experiment:string experiment=3; @lat lat=4 {lat}; @lon lon=6 {lon}
    -> experiment=3 member_id=5 time=12; unbatched areacella lat lon; partial time time_bnds experiment
Sentinel-2 EOPF zarr -- one scene: maps; the group of angles is no batch of the root
    measurements/r10m/b02 y=90 x=90; measurements/r10m/b03 y=90 x=90; measurements/r20m/b05 y=45 x=45;
    conditions/geometry/sun_angles angle=2 y=5 x=5
    -> none
ANI: one group per molecule -- molecules have conformations of their own
    CH4/coordinates =90 =5 =3; CH4/energies =90; CH4/species:string =5; C2H6/coordinates =70 =8 =3; C2H6/energies
    =70
    -> none; unbatched CH4/species; groups {"CH4": [90], "C2H6": [70]}
ragged audio -- one entry a clip; the samples are cut by their lengths
    waveforms =160000; waveforms_lengths =8; sample_rate =8; speaker =8 -> =8 [shared shape]; unbatched waveforms
EEG epochs alone -- channel stops
    data trial=120 channel=32 time=200; @channel:string channel=32 -> trial=120; unbatched channel
IsaacLab, environments first, with a table of environments -- friction has one entry an environment
    obs =64 =100 =48; actions =64 =100 =12; rewards =64 =100; friction =64 -> =64 [shared shape]
awkward arrays -- 730 by two arrays; an awkward form is not read
    events/node0-offsets =101; events/node1-data =730; events/node2-data =730
    -> =730 [shared shape]; unbatched events/node0-offsets; groups {"events": [730]}
light sheet TCZYX -- c stops
    0 t=50 c=2 z=8 y=32 x=32; 1 t=50 c=2 z=8 y=16 x=16 -> t=50
protein embeddings, one dataset per id -- each protein has a length of its own
    P12345 =120 =1024; Q67890 =300 =1024; A0A001 =77 =1024 -> none
GluonTS long format -- rows hold most of the numbers
    value row=5000; item_id row=5000; season month=12 -> row=5000; unbatched season
multi-agent, state of the world -- state is without agents
    obs step=90 agent=4 o=9; reward step=90 agent=4; state step=90 s=30 -> step=90
""")
GUARDS = rows("""
Argo with its history -- a minority of named arrays cannot veto: two arrays stand behind another dim
    PRES N_PROF=5 N_LEVELS=9; TEMP N_PROF=5 N_LEVELS=9; JULD N_PROF=5; HISTORY_START_PRES N_HISTORY=2 N_PROF=5 -> N_PROF=5
a time beside a larger array -- a time does not lose to size
    x time=5 f=2; big cell=50 g=90 -> time=5; unbatched big
nothing but empty arrays -- they share a batch of none
    obs =0 =3; act =0 =2 -> =0 [shared shape]
a batch axis of the engine before a time -- marked first
    a batch_0=4 f=3; b time=90 g=3 -> batch_0=4; unbatched b; lower case
two batch axes of the engine -- marked dims may swallow all
    a batch_0=4 batch_1=3; b batch_0=4 batch_1=3 -> batch_0=4 batch_1=3; lower case
a time that stands elsewhere in most of the numbers -- time leads fewer numbers than have it elsewhere
    a member=4 time=60; b time=60 q=2 -> member=4; unbatched b
one image and its corners -- corners lead no main array
    ct y=30 x=50; corners corner=2 -> none
goals beside trajectories -- f is no space, so goal is no field without steps
    obs traj=5 step=9 f=3; goal traj=5 f=3 -> traj=5
a spectrum for each member -- band stands behind no time
    sst member=3 time=6 y=4 x=5; spectrum member=3 band=7 -> member=3
unnamed weights beside a time -- a time needs no majority of the numbers
    w =90 =90; loss time=5 f=2 -> time=5; unbatched w
unnamed data beside a named table -- the unnamed arrays hold most of the numbers
    data =40 =30; w =40; table values=5 k=2 -> =40 [shared shape]; unbatched table
a lone array after a selection -- dim_5 is at most 5 long
    x time=6 dim_5=2 dim_7=7 -> time=6; lower case
an empty sparse matrix of MATLAB -- the attribute says so
    S/jc =21 -> none; groups {"S": []}; group_attrs {"S": {"MATLAB_sparse": 20}}
columns called offsets and values -- a table of more than a column
    offsets =40 =2; values =40 =3; name:string =40; path:string =40 -> =40 [shared shape]
jets as a group of columns -- content is cut by offsets
    jets/offsets =101; jets/content/pt =730; jets/content/eta =730 -> none; groups {"jets": []}
a column and its index of the same length -- nothing is cut
    x =40 =3; x_index =40 -> =40 [shared shape]
units with spikes and names -- spike_times is cut
    x unit=4; spike_times spike=900; spike_times_index unit=4 -> unit=4; unbatched spike_times
""")
