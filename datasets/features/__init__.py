"""Features: fitted on training rows, then rows become numbers and ids; see `FeatureEncoder`."""
