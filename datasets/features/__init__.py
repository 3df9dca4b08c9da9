"""Features: fitted on training rows, then rows to numbers and ids; see `FeatureEncoder`."""
