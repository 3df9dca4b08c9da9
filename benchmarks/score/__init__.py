"""`mmoe score` from Parquet to Parquet, beside itself of before, other libraries and engines."""
