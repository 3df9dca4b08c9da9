"""Tables spread over ranks by TorchRec: planning, lookups, ids that travel a step ahead.

`ShardedEmbeddings` looks them up; `mmoe.embeddings` has the names for other rooms.
"""
