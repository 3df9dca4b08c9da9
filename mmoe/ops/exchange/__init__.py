"""Operators of the exchange of rows between ranks: plan, pack, unpack, mix what comes back.

`mmoe.ops` has their names; `exchange_reference.py` is their specification.
"""
