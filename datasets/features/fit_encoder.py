"""Fits every feature to training rows, chunk by chunk."""

import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features import domains, levels
from mmoe.datasets.features.codec import Rules, that_share
from mmoe.datasets.features.encoder_files import codecs_of, sections
from mmoe.datasets.features.seen import ConstantsFit
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.labels.targets import SECTION as LABELS
from mmoe.datasets.labels.targets import LabelsFit
from mmoe.datasets.labels.watch_quantiles import SECTION, WatchQuantilesFit
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.projection import with_missing


class EncoderFit:
    """Learns chunk by chunk what `FeatureEncoder.of` is made from.

    Memory is bounded by the features and by the distinct ids of vocabularies, not by the rows.

    Args:
        config: Features and tables.
        origin: What the user calls the data; starts error messages.
        maturity: When the labels were collected, as for `encode_labels`.
    """

    def __init__(self, config: RunConfig, origin: str, maturity: Maturity | None = None) -> None:
        self.config, self.origin = config, origin
        self.rows = 0
        self.codecs = codecs_of(config)
        self.fits = {codec: codec.start(origin, self.codecs) for codec in self.codecs}
        self.levels = levels.LevelsFit(config, origin)
        self.domains = domains.DomainsFit(config, origin)
        self.constants = ConstantsFit(self.codecs)
        self.watch = WatchQuantilesFit(config, origin, maturity)
        self.labels = LabelsFit(config)

    def add(
        self, table: pa.Table, labels: EncodedLabels | None = None, *, check: bool = False
    ) -> None:
        """Learns from more training rows.

        Args:
            table: The rows.
            labels: Of the same rows; None: nothing is learnt of labels.
            check: Refuse rows that share a request, but not what is said of it: encoding does so
                too, after all rows have been read.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        self.rows += table.num_rows
        table = with_missing(table, self.config, self.origin)
        requests = self.levels.add(table, check=check)
        for codec, fit in self.fits.items():
            of_request = self.levels.found.get(codec.feature.name) == "request"
            # Its own word: a codec that derives from it may learn in another way
            once = of_request and vars(type(codec)).get("counts_times", False)
            codec.add(fit, requests if once and requests is not None else table, self.origin)
        self.domains.add(table)
        self.constants.add(table)
        self.watch.add(table)
        if labels is not None:
            self.labels.add(labels)

    def check(self, table: pa.Table) -> None:
        """Refuses bad values in rows that do not train, before training instead of after it."""
        table = with_missing(table, self.config, self.origin)
        self.levels.check(table)
        for codec, fit in self.fits.items():
            codec.check_beside(fit, table, self.origin)
        self.domains.check(table)
        self.watch.check(table)

    def finish(self) -> Rules:
        """Returns what the rows taught.

        Raises:
            ValueError: There was not one row, or a column holds no ids.
        """
        if self.rows == 0:
            raise ValueError(f"{self.origin}: there are no training rows to fit the features on")
        rules: Rules = {name: {} for name in sections()}
        for codecs in that_share(self.codecs):
            codecs[0].finish([self.fits[codec] for codec in codecs], rules)
        for codec, fit in self.fits.items():
            codec.finish_own(fit, rules)
        self.constants.finish(self.codecs, rules, self.origin)
        rules[levels.SECTION] = dict(self.levels.finish())
        rules[domains.SECTION] = dict(self.domains.finish())
        rules[SECTION] = dict(self.watch.finish())
        rules[LABELS] = dict(self.labels.finish())
        return rules
