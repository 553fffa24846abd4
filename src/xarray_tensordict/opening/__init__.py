"""From an open store to Datasets and trees."""
