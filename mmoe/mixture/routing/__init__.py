"""From picks to rows per expert and back: routes, capacities, dispatchers."""
