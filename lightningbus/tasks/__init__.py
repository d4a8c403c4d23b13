"""Tasks as data: read from files and data sets, and published."""
