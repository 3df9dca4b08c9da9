"""A first config out of the data itself: `infer_config`, for `mmoe init` and the estimator."""
