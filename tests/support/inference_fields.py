"""Stores of the fields that people bring, and the batch they expect; written down before the inference was asked."""

from inference_rows import rows

SWATHS_AND_SCENES = rows("""
a scene of Sentinel-3 with its detectors -- the bands are led by rows, and nothing would be left of them behind columns
    Oa01_radiance rows=80 columns=90; Oa02_radiance rows=80 columns=90; Oa03_radiance rows=80 columns=90;
    detector_index rows=80 columns=90; @latitude rows=80 columns=90 {lat}; @longitude rows=80 columns=90 {lon};
    solar_flux bands=21 detectors=30; sza tie_rows=80 tie_columns=5
    -> rows=80; unbatched solar_flux sza
aerosol of MODIS with solutions in front -- five arrays of it in front against three elsewhere
    optical_depth_0 Cell_Along_Swath=20 Cell_Across_Swath=13; optical_depth_1 Cell_Along_Swath=20
    Cell_Across_Swath=13; optical_depth_2 Cell_Along_Swath=20 Cell_Across_Swath=13; optical_depth_3
    Cell_Along_Swath=20 Cell_Across_Swath=13; optical_depth_4 Cell_Along_Swath=20 Cell_Across_Swath=13; corrected
    Solution_3_Land=3 Cell_Along_Swath=20 Cell_Across_Swath=13; @Latitude Cell_Along_Swath=20 Cell_Across_Swath=13
    {lat}; @Longitude Cell_Along_Swath=20 Cell_Across_Swath=13 {lon}
    -> Cell_Along_Swath=20; either corrected
VIIRS in two groups -- the lines are shared by both groups
    observation_data/I04 number_of_lines=32 number_of_pixels=64; observation_data/I04_quality_flags
    number_of_lines=32 number_of_pixels=64; geolocation_data/sensor_zenith number_of_lines=32 number_of_pixels=64;
    @geolocation_data/latitude number_of_lines=32 number_of_pixels=64 {lat}
    -> number_of_lines=32
columns of methane with kernels -- every pixel has a profile
    PRODUCT/methane time=1 scanline=50 ground_pixel=21; PRODUCT/qa_value time=1 scanline=50 ground_pixel=21;
    PRODUCT/column_averaging_kernel time=1 scanline=50 ground_pixel=21 layer=12; @PRODUCT/latitude time=1
    scanline=50 ground_pixel=21 {lat}; @PRODUCT/longitude time=1 scanline=50 ground_pixel=21 {lon}; @PRODUCT/layer
    layer=12
    -> time=1 scanline=50 ground_pixel=21; unbatched PRODUCT/layer
beams of a lidar with tracks of other lengths -- the beams have different lengths
    gt1l/h_canopy delta_time=90; gt1l/n_photons delta_time=90; gt1l/photons delta_time=90 ds_metrics=9;
    gt1r/h_canopy delta_time=70; gt1r/n_photons delta_time=70; orbit_info/cycle_number crossing_time=1
    -> none; groups {"gt1l": [90], "gt1r": [70]}
profiles of a cloud radar -- one profile for each ray
    Radar_Reflectivity nray=40 nbin=25; Height nray=40 nbin=25; DEM_elevation nray=40; Latitude nray=40; Longitude
    nray=40; MaxBin one=1
    -> nray=40; unbatched MaxBin
precipitation of GPM -- all groups lie below one, which scans
    FS/Latitude nscan=30 nray=49; FS/Longitude nscan=30 nray=49; FS/ScanTime/Year nscan=30; FS/ScanTime/Month
    nscan=30; FS/SLV/precipRate nscan=30 nray=49 nbin=17; FS/navigation/scPos nscan=30 XYZ=3
    -> nscan=30
bursts of a radar with tie points in time -- both are times; it leads more numbers
    measurement azimuth_time=60 slant_range_time=50; noise azimuth_time=60 slant_range_time=50; incidence
    gcp_azimuth_time=5 gcp_slant_range_time=4; @azimuth_time:time azimuth_time=60; @gcp_azimuth_time:time
    gcp_azimuth_time=5; @slant_range_time slant_range_time=50
    -> azimuth_time=60; unbatched incidence gcp_azimuth_time slant_range_time
a scene of three resolutions -- y and x are space
    R10m/B00 y=120 x=120; R10m/B01 y=120 x=120; R10m/B02 y=120 x=120; R20m/B00 y=60 x=60; R20m/B01 y=60 x=60;
    R20m/B02 y=60 x=60; R60m/B00 y=20 x=20; R60m/B01 y=20 x=20; R60m/B02 y=20 x=20
    -> none; groups {"R10m": [], "R20m": [], "R60m": []}
an image of a geostationary satellite -- y and x are space, and a table of stars is no batch of an image
    Rad y=50 x=50; DQF y=50 x=50; band_id band=1; @t:time; star_id num_star_looks=24; goes_imager_projection -> none
a stack of reflectances with cloud masks -- the times
    reflectance time=8 band=4 y=10 x=12; cloud_mask time=8 y=10 x=12; @spatial_ref; @time:time time=8; @y y=10; @x
    x=12; @band band=4
    -> time=8; unbatched spatial_ref y x band
""")

ENSEMBLES = rows("""
an ensemble beside ice of one member -- time is the first dim of the mask alone
    tas member=5 time=4 lat=3 lon=5; ice_mask time=4 lat=3 lon=5; sftlf lat=3 lon=5; @time:time time=4; grid lat lon
    -> member=5; unbatched ice_mask sftlf time lat lon
an ensemble with a mask and an area -- a mask for each member does not hide time
    TREFHT member_id=4 time=6 lat=3 lon=5; PRECT member_id=4 time=6 lat=3 lon=5; mask member_id=4 lat=3 lon=5; area
    lat=3 lon=5; time_bound time=6 d2=2; @time:time time=6 {"bounds": "time_bound"}; grid lat lon
    -> member_id=4 time=6; unbatched area lat lon; partial mask time_bound time
an ensemble with a weight for each member -- a weight is no field, so members are the rows
    tas realization=5 time=12 lat=3 lon=5; mask realization=5 lat=3 lon=5; weight realization=5; @time:time time=12;
    grid lat lon
    -> realization=5; unbatched time lat lon
a hindcast beside its climatology -- each start, lead and member
    tp init=12 lead=9 member=10 lat=3 lon=5; clim month=12 lat=3 lon=5; @valid_time:time init=12 lead=9; @init:time
    init=12; grid lat lon
    -> init=12 lead=9 member=10; unbatched clim lat lon; partial valid_time init
an ensemble of one start -- each member and step
    t2m number=10 step=5 latitude=3 longitude=5; tp number=10 step=5 latitude=3 longitude=5; @time:time;
    @valid_time:time step=5; @step:time step=5; @number number=10; grid latitude longitude
    -> number=10 step=5; unbatched time latitude longitude; partial valid_time step number
""")

FORECASTS = rows("""
forecasts beside longer analyses -- both are times, and the analyses hold more numbers
    t_fc forecast_reference_time=6 lead_time=4 lat=3 lon=5; t_an time=30 lat=3 lon=5; @forecast_reference_time:time
    forecast_reference_time=6; @time:time time=30; grid lat lon
    -> time=30; unbatched t_fc forecast_reference_time lat lon
forecasts beside shorter analyses -- the analyses have neither the highest rank nor most of the numbers
    t_fc init_time=6 lead_time=8 lat=3 lon=5; t_an time=30 lat=3 lon=5; @init_time:time init_time=6; @time:time
    time=30; grid lat lon
    -> init_time=6 lead_time=8; unbatched t_an time lat lon; partial init_time
forecasts and analyses in two groups -- the groups share nothing
    forecast/t2m init_time=6 lead_time=8 lat=3 lon=5; analysis/t2m time=30 lat=3 lon=5; analysis/lsm lat=3 lon=5
    -> none; unbatched analysis/lsm; groups {"forecast": [6, 8], "analysis": [30]}
variables in front of times -- a feature dim in front; the note names time
    fields variable=20 time=40 lat=3 lon=5; @variable:string variable=20; @time:time time=40; grid lat lon -> none
variables behind times, with statistics -- the times
    data time=40 variable=8 ensemble=1 cell=100; mean variable=8; stdev variable=8; latitudes cell=100; longitudes
    cell=100; dates:time time=40
    -> time=40; unbatched mean stdev latitudes longitudes
the same without names -- data and dates hold most of the elements
    data =40 =8 =1 =100; mean =8; stdev =8; minimum =8; maximum =8; latitudes =100; longitudes =100; dates:time =40
    -> =40 [shared shape]; unbatched mean stdev minimum maximum latitudes longitudes
samples of a weather model -- samples, then their times
    2m_temperature batch=1 time=3 lat=4 lon=5; geopotential batch=1 time=3 level=6 lat=4 lon=5;
    geopotential_at_surface lat=4 lon=5; land_sea_mask lat=4 lon=5; @datetime:time batch=1 time=3; @time:time
    time=3; @level level=6; @lat lat=4 {lat}; @lon lon=5 {lon}
    -> batch=1 time=3; unbatched geopotential_at_surface land_sea_mask level lat lon; partial time
channels in front, with the mean of each -- channels are features; the note names time
    fields channel=20 time=40 y=4 x=5; mean channel=20; @time:time time=40 -> none
""")

TABLES = rows("""
jets by offsets beside events -- the jets are cut by their offsets; events have rows
    jets/pt =900; jets/eta =900; jets/phi =900; jets_offsets =101; met =100; weight =100
    -> =100 [shared shape]; unbatched jets/pt jets/eta jets/phi jets_offsets
jets with particles and labels -- one row for each jet
    particle_features =100 =30 =4; particle_mask =100 =30; jet_features =100 =5 -> =100 [shared shape]
a frame of poses by pandas -- the block and its index hold most of the elements
    df/block0_values =90 =42; df/axis1 =90; df/axis0_label0 =42; df/axis0_label1 =42; df/axis0_level0:string =1
    -> =90 [shared shape]; unbatched df/axis0_label0 df/axis0_label1 df/axis0_level0
poses with confidence in another order -- frames
    position time=50 space=2 keypoint=13 individual=2; confidence time=50 keypoint=13 individual=2; @space:string
    space=2; @keypoint:string keypoint=13
    -> time=50; unbatched space keypoint
poses of two cameras with their intrinsics -- a lone small array beside the groups; both go on with the keypoints
    cam0/keypoints =90 =13 =2; cam1/keypoints =90 =13 =2; cam0/confidence =90 =13; cam1/confidence =90 =13;
    intrinsics =2 =3 =3
    -> =90 =13 [shared shape]; unbatched intrinsics
cells with a dense matrix -- the matrix has a row for each cell
    X =30 =50; obs/_index:string =30; obs/n_genes =30; obs/cell_type/codes =30; obs/cell_type/categories:string =5;
    var/_index:string =50; var/mean =50; obsm/X_pca =30 =10
    -> =30 [shared shape]; unbatched obs/cell_type/categories var/_index var/mean
cells with a sparse matrix of 10x -- a sparse matrix has no rows of its own
    matrix/data =400; matrix/indices =400; matrix/indptr =31; matrix/shape =2; matrix/barcodes:string =30;
    matrix/features/id:string =50
    -> none; groups {"matrix": []}
a posterior with warmup of another length -- data have no draws
    posterior/mu chain=4 draw=100; posterior/theta chain=4 draw=100 school=8; sample_stats/lp chain=4 draw=100;
    observed_data/obs school=8
    -> none; groups {"posterior": [4, 100], "sample_stats": [4, 100], "observed_data": [8]}
walkers of emcee -- steps and walkers are shared by what holds most of the elements
    mcmc/chain =500 =32 =5; mcmc/log_prob =500 =32; mcmc/accepted =32
    -> =500 =32 [shared shape]; unbatched mcmc/accepted
samples of a sampler without chains -- draws
    mu =400; theta =400 =8; log_lik =400 =20 -> =400 [shared shape]
draws of parameters by name -- chains and draws
    draws chain=4 iteration=100 param=7; lp chain=4 iteration=100; @param:string param=7
    -> chain=4 iteration=100; unbatched param
traces with headers -- traces
    traces trace=100 sample=50; cdp trace=100; inline trace=100; offset trace=100; @sample sample=50
    -> trace=100; unbatched sample
traces with headers in a group, without names -- one array with a size is no majority, and the headers are in another group
    data =100 =50; headers/cdp =100; headers/inline =100; samples =50 -> none; groups {"headers": [100]}
a cube of stacked traces -- a trace for each line and crossline
    seismic inline=20 crossline=30 sample=40; cdp_x inline=20 crossline=30; cdp_y inline=20 crossline=30; trace_mask
    inline=20 crossline=30; @sample sample=40
    -> inline=20 crossline=30; unbatched sample
gathers before stacking -- a trace for each line, crossline and offset
    seismic inline=10 crossline=12 offset=6 time=40; trace_mask inline=10 crossline=12 offset=6; @time time=40
    -> inline=10 crossline=12 offset=6; unbatched time
events of a camera with an index of milliseconds -- a small array at the root does not take the batch from the events
    events/x =9000; events/y =9000; events/t =9000; events/p =9000; ms_to_idx =500; t_offset
    -> =9000 [shared shape]; unbatched ms_to_idx t_offset
events of a camera with triggers -- the groups share nothing
    CD/events/x =9000; CD/events/y =9000; CD/events/t =9000; CD/events/p =9000; CD/indexes/id =50; CD/indexes/ts
    =50; EXT_TRIGGER/events/id =12; EXT_TRIGGER/events/t =12
    -> none; groups {"CD/events": [9000], "CD/indexes": [50], "EXT_TRIGGER": [12]}
drifters by row sizes -- observations lead most of the numbers
    ID traj=10; rowsize traj=10; sst obs=900; ve obs=900; vn obs=900; @time:time obs=900
    -> obs=900; unbatched ID rowsize
atoms of a simulation -- bonds are of no frame
    particles/all/position/value =200 =50 =3; particles/all/position/step =200; particles/all/box/value =200 =3;
    particles/all/box/step =200; particles/all/charge =50; connectivity/bonds =40 =2
    -> none; unbatched particles/all/charge; groups {"particles": [200], "particles/all": [200], "connectivity":
    [40]}
a volume of a weather radar by sweeps -- the sweeps have other rays
    sweep_fixed_angle =2; sweep_0/DBZH azimuth=360 range=40; sweep_0/VEL azimuth=360 range=40; sweep_1/DBZH
    azimuth=720 range=40; sweep_1/VEL azimuth=720 range=40
    -> none; groups {"sweep_0": [360], "sweep_1": [720]}
an ocean on an unstructured mesh -- the times
    zeta time=6 node=50; temp time=6 siglay=4 node=50; u time=6 siglay=4 nele=80; nv three=3 nele=80; h node=50;
    @time:time time=6
    -> time=6; unbatched nv h
""")

FIELDS = [*SWATHS_AND_SCENES, *ENSEMBLES, *FORECASTS, *TABLES]
