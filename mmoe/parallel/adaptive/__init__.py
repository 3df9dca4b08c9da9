"""Choice of how rows or weights travel, made while a network is trained.

`measure_links` says what sending and computing cost, `cost_model` ranks the modes of a call by it,
and `AdaptiveMode` times the best few; `mmoe.parallel` has the names for other rooms.
"""
