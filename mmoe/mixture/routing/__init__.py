"""Routing: from picks to rows per expert and back, capacities, dispatchers.

`plan_routes` says which row goes to which expert, a `Capacity` what is dropped, a `Dispatcher`
moves the rows; `mmoe.mixture` has the public ones of these names.
"""
