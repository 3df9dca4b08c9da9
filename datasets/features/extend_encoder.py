"""Extends yesterday's encoder by today's rows: known ids keep their rows, new ones follow."""

from dataclasses import replace

from mmoe.config import CategoricalFeature
from mmoe.datasets.features import domains
from mmoe.datasets.features.codec import Rules, that_share
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.seen import extend_constants, extend_lists
from mmoe.datasets.features.vocabulary import Vocabulary
from mmoe.datasets.labels import targets
from mmoe.datasets.labels.watch_quantiles import SECTION


def extend_encoder(today: FeatureEncoder, earlier: FeatureEncoder, origin: str) -> FeatureEncoder:
    """Returns an encoder with known rows as in `earlier`, and today's new ids as well.

    Scaling, buckets and pieces of features that `earlier` had are kept, quantiles of watch times
    and the scaling of labels: other ones would give its weights another meaning. Its ids keep their
    rows, and its domains their numbers; those that `today` has on top get the next ones, in
    today's order. Features and tables that are new are taken from `today`, and so is the rule of a
    number that had one value until now. Where today's config freezes the encoder or a table, new
    ids get no rows.

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
    _leave_out_known(rules, today, origin)
    before = [feature.name for feature in earlier.config.features]
    extend_lists(rules, earlier.rules, before)
    extend_constants(rules, earlier.rules, today.codecs, origin, before)
    for task in rules.get(SECTION, {}):
        kept = earlier.rules.get(SECTION, {}).get(task)
        if kept is not None:
            rules[SECTION][task] = kept
    there = earlier.rules.get(targets.SECTION, {})  # a run that learnt labels unchanged has none
    for task in {task.name for task in earlier.config.tasks} & {t.name for t in today.config.tasks}:
        rules[targets.SECTION].pop(task, None)
        if task in there:
            rules[targets.SECTION][task] = there[task]
    for column, new in rules.get(domains.SECTION, {}).items():
        known = earlier.rules.get(domains.SECTION, {}).get(column)
        if known is not None:
            rules[domains.SECTION][column] = known.with_new(new)
    return replace(today, rules=rules)


def _keep_frozen(rules: Rules, today: FeatureEncoder, earlier: FeatureEncoder) -> None:
    """Gives no rows to new ids where nothing would train them, or the encoder is frozen."""
    config = today.config
    stages = config.model.stages
    kept = stages[-1].features if config.keeps_encoder else ()
    for codec in today.codecs:
        for section, name in codec.keys:
            known = earlier.rules.get(section, {})
            frozen = section == "tables" and name in config.frozen_tables
            if name in known and (frozen or codec.feature.name in kept):
                rules[section][name] = known[name]


def _leave_out_known(rules: Rules, today: FeatureEncoder, origin: str) -> None:
    """Leaves ids out of features for new ones (`beyond`) that an earlier table has."""
    tables = rules["tables"]
    for codec in today.codecs:
        feature = codec.feature
        if not isinstance(codec, IdCodec) or not isinstance(feature, CategoricalFeature):
            continue
        for name in feature.beyond if codec.table not in today.config.frozen_tables else ():
            own, other = tables[codec.table], tables.get(name)
            if isinstance(own, Vocabulary) and isinstance(other, Vocabulary):
                tables[codec.table] = own.without(other, codec.label(origin))
