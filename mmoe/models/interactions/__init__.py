"""Interactions: products of features before the mixture, in every logit, or as experts."""
