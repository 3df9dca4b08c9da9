"""Tables whose rows change owners while training goes on (TorchRec's managed collisions).

`ManagedEmbeddings` looks ids up through `IdAdmission`, which decides who owns which row;
`mmoe.embeddings` has the names for other rooms.
"""
