"""Extends yesterday's encoder by today's rows: known ids keep their rows, new ones follow."""

from dataclasses import replace

from mmoe.datasets.features.codec import Rules, that_share
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.watch_quantiles import SECTION


def extend_encoder(today: FeatureEncoder, earlier: FeatureEncoder, origin: str) -> FeatureEncoder:
    """Returns an encoder with known rows as in `earlier`, and today's new ids as well.

    Scaling, buckets and pieces of features that `earlier` had are kept, and quantiles of watch
    times: other ones would give its weights another meaning. Its ids keep their rows; ids that
    `today` has on top get the next rows, in today's order. Features and tables that are new are
    taken from `today`. Where today's config freezes the encoder or a table, new ids get no rows.

    Args:
        today: Fitted on today's training rows, with today's config.
        earlier: Of the run that is continued; features of one name have the same settings.
        origin: What the user calls today's data; starts error messages.

    Raises:
        ValueError: Ids that are hashed, managed or crossed are of another kind now, a table has
            another encoding, or a vocabulary outgrows its max_rows.

    Example:
        >>> import pyarrow as pa
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> monday, tuesday = (
        ...     FeatureEncoder.fit(config, pa.table({"item": items}), "log")
        ...     for items in (["a", "b", "b"], ["c", "c", "a", "d"]))
        >>> extend_encoder(tuesday, monday, "log").ids["item"].keys.to_pylist()
        ['b', 'a', 'c', 'd']
    """
    rules = {section: dict(entries) for section, entries in today.rules.items()}
    for codecs in that_share(today.codecs):
        codecs[0].extend(rules, earlier.rules, origin)
    _keep_frozen(rules, today, earlier)
    for task in rules.get(SECTION, {}):
        kept = earlier.rules.get(SECTION, {}).get(task)
        if kept is not None:
            rules[SECTION][task] = kept
    return replace(today, rules=rules)


def _keep_frozen(rules: Rules, today: FeatureEncoder, earlier: FeatureEncoder) -> None:
    """Gives no rows to new ids where nothing would train them, or the encoder is frozen."""
    config, tables = today.config, today.config.frozen_tables
    for section, name in dict.fromkeys(key for codec in today.codecs for key in codec.keys):
        known = earlier.rules.get(section, {})
        if name in known and (config.keeps_encoder or (section == "tables" and name in tables)):
            rules[section][name] = known[name]
