"""Tables that are read only: fp32, fp16 or int8 rows, on one process or spread over ranks.

`ScoringEmbeddings` looks them up; `mmoe.embeddings` has the names for other rooms.
"""
