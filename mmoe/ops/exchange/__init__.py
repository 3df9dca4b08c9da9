"""Operators of the exchange of rows between ranks: plan, pack, unpack, mix what comes back."""
