"""Tables whose rows change owners while training goes on (TorchRec's managed collisions)."""
