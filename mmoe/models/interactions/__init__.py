"""What multiplies features: before the mixture, in every logit, or as experts of a pool."""
