"""Experts spread over ranks: who holds which, and how a row travels to them and back.

`ExpertPlacement` says who holds them, `AllToAllDispatcher` sends rows over a `Wire`;
`mmoe.parallel` has the names for other rooms.
"""
