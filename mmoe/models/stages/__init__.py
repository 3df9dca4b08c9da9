"""Networks that grew: what there was before stands beside what has come since, as it was."""
