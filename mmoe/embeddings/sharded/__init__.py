"""Tables spread over ranks by TorchRec: planning, lookups, ids that travel a step ahead."""
