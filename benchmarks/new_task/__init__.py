"""A fifth task on a frozen model of four, beside a model that is trained for all five."""
