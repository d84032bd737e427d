//! Fuzz targets and the replay of their committed corpus
