"""Makes the encoders of a run's sequences."""

from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.mixture.draws import borrowed_generators
from mmoe.models.sequences.inputs import SequenceInputs


def build_sequences(encoder: FeatureEncoder) -> SequenceInputs | None:
    """Makes the encoders of a run's sequences; None: there are none."""
    if not encoder.sequences:
        return None
    dims = {table.name: table.dim for table in encoder.tables}
    features = [*encoder.categorical, *encoder.lists]
    return SequenceInputs(encoder.sequences, features, dims)


def sequence_columns(encoder: FeatureEncoder) -> list[tuple[str, int]]:
    """Names the vectors that sequences become, in their order, each with its width."""
    with borrowed_generators():  # made to be asked for names alone
        sequences = build_sequences(encoder)
    return [] if sequences is None else sequences.columns
