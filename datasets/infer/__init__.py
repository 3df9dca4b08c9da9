"""A first config out of the data itself: `mmoe init` and the estimator."""
