"""`FeatureEncoder`: from columns to network inputs; how it is fitted, stored and continued."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import Field, create_model

from mmoe.config import (
    FEATURES,
    LabelSpec,
    Level,
    RunConfig,
    Stored,
    TableSpec,
    config_from_dict,
    read_stored,
)
from mmoe.datasets.features.codec import (
    Codec,
    Coded,
    FeatureColumns,
    Place,
    Rules,
    Section,
    TrainingRows,
    joined,
    missing,
    that_share,
    width_of,
)
from mmoe.datasets.features.domains import (
    DOMAINS,
    Domains,
    DomainsFit,
    DomainsSection,
    domains_of,
    encode_domains,
)
from mmoe.datasets.features.id_map import IdMap, Vocabulary
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.features.seen import (
    CONSTANTS,
    HELD_COLUMNS,
    SECTIONS,
    SEEN_IDS,
    SEEN_LENGTHS,
    SEEN_WEIGHTS,
    Constant,
    Constants,
    ConstantsFit,
    extend_constants,
    extend_lists,
    held_constant,
)
from mmoe.datasets.features.single_rows import SingleRows, one_row
from mmoe.datasets.features.trees import TREES, TreesCodec
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.labels.targets import LABELS, LabelsFit, LabelsSection, continued, row_links
from mmoe.datasets.labels.watch_quantiles import (
    WATCH_QUANTILES,
    WatchQuantilesFit,
    WatchQuantilesSection,
)
from mmoe.datasets.rows.encoded import (
    EncodedData,
    EncodedFeatures,
    EncodedLabels,
    EncodedRequests,
    LevelLayout,
)
from mmoe.datasets.rows.projection import with_missing
from mmoe.datasets.rows.requests import LEVELS, LevelsFit, columns_read, find_requests
from mmoe.datasets.values.arrow import out_of_memory
from mmoe.errors import NotImported


def codecs_of(config: RunConfig) -> list[Codec[Any]]:
    """Makes the codecs of the features, in their order: one each, or one for each part."""
    return [
        codec
        for feature in config.features
        for codec in FEATURES.implementation(feature).of(feature, config)
    ]


def sections() -> dict[str, Section]:
    """Lists the sections of encoder.json, in their order."""
    codecs = [FEATURES.implementation(kind) for kind in FEATURES.names()]
    every: tuple[Section, ...] = (
        *(section for codec in codecs for section in codec.sections),
        Section(LEVELS, Level),  # of each feature, where rows are candidates of requests
        WatchQuantilesSection(),
        DomainsSection(),
        *SECTIONS,
        Constants(),
        LabelsSection(),
    )
    return {section.name: section for section in every}


_FORMAT = 1


@cache
def _shape(_: tuple[str, ...]) -> type[Stored]:
    """encoder.json, with the sections that there are."""
    fields: dict[str, Any] = {"format": (Literal[1], ...), "config": (dict[str, Any], ...)}
    for section in sections().values():
        fields[section.name] = (dict[str, section.entry], Field(default_factory=dict))
    return create_model("Encoder", __base__=Stored, **fields)


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
        self.levels = LevelsFit(config, origin)
        self.domains = DomainsFit(config, origin)
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
            codec.check(fit, table, self.origin)
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
        rules[LEVELS] = dict(self.levels.finish())
        rules[DOMAINS] = dict(self.domains.finish())
        rules[WATCH_QUANTILES] = dict(self.watch.finish())
        rules[LABELS] = dict(self.labels.finish())
        return rules


@dataclass(frozen=True, kw_only=True)
class FeatureEncoder(FeatureColumns):
    """Scaling, buckets, pieces and ids of every feature, fitted on training rows.

    Ids are int32: 0 = missing (null, NaN, ""), 1 = not in the vocabulary, 2 and up known ids,
    buckets or parts of a datetime; int64 raw ids from 2 up with encoding managed. Numbers:
    (f(x) − mean) / deviation, missing = 0.

    Attributes:
        config: The run; its features decide the order of everything below.
        rules: What training rows taught: section of encoder.json → feature or table → rule.
        checked: Rows of a request are known to share what features of requests read.
        training: It encodes rows that it was fitted on, known again by that: trees of other rows
            speak of them. None: other rows.
        codecs: Codec of each feature, in their order.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"},
        ...                  {"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> train = pa.table({"item": ["a", "b", "b"], "age": [10.0, 20.0, 30.0]})
        >>> encoder = FeatureEncoder.fit(config, train, "log.csv")
        >>> encoded = encoder.encode(pa.table({"item": ["b", "x", ""], "age": [20, 20, 20]}), "new")
        >>> encoded.ids_NC[:, 0].tolist(), encoded.dense_NF[:, 0].tolist()
        ([2, 1, 0], [0.0, 0.0, 0.0])
    """

    config: RunConfig
    checked: bool = False
    training: TrainingRows | None = None
    codecs: Sequence[Codec[Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", codecs_of(self.config))

    @classmethod
    def fit(
        cls,
        config: RunConfig,
        train: pa.Table,
        origin: str,
        maturity: Maturity | None = None,
        labels: EncodedLabels | None = None,
    ) -> "FeatureEncoder":
        """Learns vocabularies, buckets, pieces and scaling.

        Args:
            config: Features and tables.
            train: The training rows, and no others.
            origin: What the user calls the data; starts error messages.
            maturity: When the labels were collected, as for `encode_labels`.
            labels: Of these rows; None: nothing is learnt of labels, and they stay unscaled.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        fit = EncoderFit(config, origin, maturity)
        fit.add(train, labels)
        return cls.of(fit)

    @classmethod
    def of(cls, fit: EncoderFit) -> "FeatureEncoder":
        """Makes one of training rows seen chunk by chunk; the same as `fit` of all.

        Raises:
            ValueError: There was not one row, or a column is no column of ids.
        """
        return cls(config=fit.config, rules=fit.finish())

    def fingerprint(self) -> str:
        """Returns a digest that tells encoders of other rows apart; not of all keys.

        By ids alone: of numbers the last bits may differ from machine to machine.
        """
        digest = sha256()
        for name, section in sorted(sections().items()):
            for mark in section.marks(self.rules.get(name, {})):
                digest.update(mark)
        return digest.hexdigest()[:16]

    @property
    def numeric(self) -> dict[str, NumericRule]:
        """Scaling, buckets and pieces of each numeric feature."""
        return self.rules["numeric"]

    @property
    def ids(self) -> dict[str, IdMap]:
        """Vocabulary, hash or rule for raw ids of each table of ids."""
        return self.rules["tables"]

    @property
    def constants(self) -> dict[str, Constant]:
        """Features that say one thing in every training row, or nothing."""
        return self.rules.get(CONSTANTS, {})

    @property
    def ranged(self) -> list[str]:
        """Names of the features that know what training rows held: `EncodedFeatures.outside`."""
        held = {name for name, columns in self.rules[HELD_COLUMNS].items() if columns}
        sections = ("numeric", "vectors", SEEN_WEIGHTS, SEEN_LENGTHS, CONSTANTS)
        known = held.union(*(self.rules[section] for section in sections))
        return [feature.name for feature in self.config.features if feature.name in known]

    @property
    def never_varied(self) -> list[str]:
        """Names of features, parts of datetimes and numbers of vectors of one training value."""
        numbers = [name for name, rule in self.numeric.items() if not rule.varies]
        parts = [name for name, seen in self.rules[SEEN_IDS].items() if len(seen) == 1]
        vectors = self.rules["vectors"].items()
        flat = [(name, sum(a == b for a, b in rule.seen), rule.length) for name, rule in vectors]
        some = [f"{k} of the {length} numbers of {name}" for name, k, length in flat if k]
        return [*numbers, *self.constants, *parts, *some]

    @cached_property
    def levels(self) -> dict[str, Level]:
        """Level of each feature; none where rows have no requests."""
        return self.rules.get(LEVELS, {})

    @property
    def has_requests(self) -> bool:
        """Whether some features are of requests, with columns apart from others'."""
        return "request" in self.levels.values()

    def level_of(self, feature: str) -> Level:
        """Returns whose value a feature is: a request's, or a row's."""
        return self.levels.get(feature, "row")

    def of_level(self, level: Level) -> FeatureColumns:
        """Returns what the features of one level become; their dense columns are counted apart.

        Without requests all features are of rows.
        """
        return FeatureColumns(codecs=self._at_level(level), rules=self.rules)

    def _at_level(self, level: Level) -> list[Codec[Any]]:
        return [codec for codec in self.codecs if self.level_of(codec.feature.name) == level]

    @property
    def lacks_trees(self) -> bool:
        """Whether a feature of trees, which are of all other features, has yet to learn."""
        return any(codec.feature.name not in self.rules[TREES] for codec, _ in self._trees)

    def learning(self, data: EncodedData, by: TrainingRows) -> Self:
        """Returns it with the trees that encoded training rows teach.

        Args:
            data: The rows, as this encoder encodes them, with labels.
            by: What they are known again by.
        """
        trees = dict(self.rules[TREES])
        for codec, _ in self._trees:
            if codec.feature.name not in trees:
                trees[codec.feature.name] = codec.learn(data, list(self.places()), self.rules, by)
        return replace(self, rules={**self.rules, TREES: trees})

    @cached_property
    def _trees(self) -> list[tuple[TreesCodec, slice]]:
        """Codecs of trees, and where their numbers stand."""
        places = ((codec, dense) for codec, _, (dense, _, _) in self.places())
        return [(codec, dense) for codec, dense in places if isinstance(codec, TreesCodec)]

    def _with_trees(self, found: EncodedFeatures) -> EncodedFeatures:
        """Fills in the numbers of trees, in place."""
        for codec, dense in self._trees:
            found.dense_NF[:, dense] = codec.derive(
                found, list(self.places()), self.rules, self.training
            )
        return found

    def places(self) -> Iterator[Place]:
        """Yields each codec, its level, and its dense columns, ids and lists among its level's."""
        at: dict[Level, list[int]] = {"row": [0, 0, 0], "request": [0, 0, 0]}
        for codec in self.codecs:
            level = self.level_of(codec.feature.name)
            widths = (len(codec.dense_columns(self.rules)), len(codec.lookups), len(codec.lists))
            starts = at[level]
            at[level] = [start + width for start, width in zip(starts, widths, strict=True)]
            dense, ids, lists = map(slice, starts, at[level])
            yield codec, level, (dense, ids, lists)

    @cached_property
    def layout(self) -> LevelLayout:
        """Layout of levels: the columns of requests, in the order of all."""

        flags: tuple[list[bool], list[bool], list[bool]] = [], [], []
        for _, level, places in self.places():
            for of_sort, place in zip(flags, places, strict=True):
                of_sort += [level == "request"] * (place.stop - place.start)
        dense, ids, lists = map(tuple, flags)
        return LevelLayout(dense=dense, ids=ids, lists=lists)

    @property
    def labels(self) -> Mapping[str, LabelSpec]:
        """Statistics of labels, by task."""
        return self.rules.get(LABELS, {})

    def with_labels(self, labels: Mapping[str, LabelSpec]) -> Self:
        """Returns the same encoder with other statistics of labels."""
        return replace(self, rules={**self.rules, LABELS: dict(labels)})

    def without_residuals(self) -> Self:
        """Returns the encoder before training, without what validation rows teach."""
        labels = {name: replace(spec, residuals=()) for name, spec in self.labels.items()}
        return self.with_labels(labels)

    @property
    def domains(self) -> Domains | None:
        """The domains that training rows had; None: the run has none."""
        return None if self.config.model.domains is None else domains_of(self.rules)

    @property
    def tables(self) -> list[TableSpec]:
        """Embedding tables, in the order in which features first use them."""
        specs = (spec for codec in self.codecs for spec in codec.tables(self.rules))
        found = {spec.name: spec for spec in specs}
        frozen = self.config.frozen_tables
        return [replace(s, frozen=True) if s.name in frozen else s for s in found.values()]

    def encode(self, table: pa.Table, origin: str, *, to_score: bool = False) -> EncodedFeatures:
        """Encodes rows; columns may have other types than in training where the values agree.

        Args:
            table: N rows with the features' columns; others are ignored.
            origin: What the user calls the data; starts error messages.
            to_score: Only scores are wanted: features of `model.bias` that these do not read are
                not looked for, and come as missing.

        Raises:
            ValueError: A column is missing, or a value does not fit: a number that is none or
                infinite, a datetime that is none, a weight too few.
        """
        single = to_score and table.num_rows == 1
        if single and (found := self.encode_row(table)) is not None:
            return found
        table = self.read(table, origin)
        links = row_links(self.config, self.rules, table, origin)
        domains_N = None
        if self.config.model.domains is not None:
            domains_N = encode_domains(self.config, self.rules, table, origin)
        if not self.has_requests:
            found = self._with_trees(self._encode(self.codecs, table, origin, to_score))
            return replace(found, links=links, domains_N=domains_N)
        assert self.config.data.requests is not None, "features are of requests"
        shared, own = self._at_level("request"), self._at_level("row")
        named = find_requests(self.config.data.requests, table, origin)
        unread = self.config.unread_when_scoring if to_score else ()
        read = [codec.feature for codec in shared if codec.feature.name not in unread]
        first = named.first_rows(table, columns_read(read), origin, checked=self.checked)
        requests = EncodedRequests(
            features=self._encode(shared, first, origin, to_score),
            request_N=named.request_N,
            keys_M=named.keys_M,
            layout=self.layout,
        )
        found = self._encode(own, table, origin, to_score)
        return replace(found, links=links, domains_N=domains_N, requests=requests)

    def read(self, table: pa.Table, origin: str) -> pa.Table:
        """Returns rows as features read them: null where text is a word for what is missing.

        Args:
            table: Rows, with the user's columns.
            origin: What the user calls the data.
        """
        return with_missing(table, self.config, origin)

    def _encode(
        self, codecs: Sequence[Codec[Any]], table: pa.Table, origin: str, to_score: bool
    ) -> EncodedFeatures:
        unread = self.config.unread_when_scoring if to_score else ()
        coded = [
            missing(codec, self.rules, table.num_rows)
            if codec.feature.name in unread
            else self.encode_one(codec, table, origin)
            for codec in codecs
        ]
        return joined(codecs, coded, table.num_rows)

    def encode_row(self, rows: Any) -> EncodedFeatures | None:
        """Encodes the only row of rows in memory, to score it, without making a table of it.

        Args:
            rows: As for `as_table`.

        Returns:
            What `encode` gives; None: they are no single row, or one that `encode` refuses.
        """
        singly = self._singly
        row = None if singly is None else one_row(rows, singly.names)
        found = None if singly is None or row is None else singly.encode(row, "row")
        return None if found is None else self._with_trees(found)

    @cached_property
    def _singly(self) -> SingleRows | None:
        if self.config.data.requests is not None:
            return None
        return SingleRows(self.config, self.rules, self.codecs, self.encode_one)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles begin without cells."""
        made = ("_singly", "_trees")
        return {name: value for name, value in vars(self).items() if name not in made}

    def encode_one(self, codec: Codec[Any], table: pa.Table, origin: str) -> Coded:
        """Encodes rows by one codec; a feature that was constant in training stays that constant.

        Args:
            codec: One of this encoder's own.
            table: Rows, as `read` gives them.
            origin: What the user calls the data.
        """
        coded = codec.encode(table, self.rules, origin)
        _check(codec, coded, self.rules, table.num_rows)
        one = self.constants.get(codec.feature.name)
        if one is None:
            return coded
        name = codec.feature.name
        of_feature = [other for other in self.codecs if other.feature.name == name]
        return held_constant(coded, one.coded[of_feature.index(codec)], table.num_rows)

    def save(self, folder: str | Path) -> None:
        """Writes encoder.json and one Parquet file for each vocabulary; no pickle.

        All under temporary names first; encoder.json comes last, as the seal.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"format": _FORMAT, "config": self.config.model_dump(mode="json")}
        for key, section in sections().items():
            # The number keeps names apart that differ in case only, for disks that ignore case.
            content[key] = {
                name: section.write(rule, folder, f"{number:03d}-{name}")
                for number, (name, rule) in enumerate(self.rules.get(key, {}).items())
            }
        target = folder / "encoder.json"
        temporary = target.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(target)

    @classmethod
    def load(cls, folder: str | Path) -> "FeatureEncoder":
        """Reads what `save` wrote.

        Raises:
            ValueError: The folder holds no complete encoder, or needs a module that is not allowed.
        """
        folder = Path(folder)
        file = folder / "encoder.json"
        try:
            content = read_stored(file, _shape(tuple(sections())), "copy the run again")
            config = config_from_dict(content["config"], origin=str(file), of_run=True)
            rules = {
                key: {
                    name: section.read(entry, folder)
                    for name, entry in content.get(key, {}).items()
                }
                for key, section in sections().items()
            }
            for section, name in (key for codec in codecs_of(config) for key in codec.keys):
                if name not in rules[section]:
                    raise ValueError(f"{file}: {section}.{name}: is missing")
        except NotImported:
            raise
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise out_of_memory(error, str(folder)) or ValueError(
                f"{folder}: holds no complete encoder ({reason}); expected the vocabulary folder "
                "of a run that mmoe train wrote"
            ) from None
        return cls(config=config, rules=rules)


def _check(codec: Codec[Any], coded: Coded, rules: Rules, num_rows: int) -> None:
    """Refuses what a codec of somebody's returned, where the network could not say whose it is."""
    made = f"{codec.used_by}: {type(codec).__name__}.encode returned"
    for names, expected, columns in (
        ("dense_names", codec.dense_columns(rules), sum(map(width_of, coded.dense))),
        ("lookups", codec.lookups, len(coded.ids)),
        ("lists", codec.lists, len(coded.lists)),
    ):
        if columns != len(expected):
            raise ValueError(f"{made} {columns} of the {len(expected)} in its `{names}`")
    for column_N in (*coded.dense, *coded.ids):
        if len(column_N) != num_rows:
            raise ValueError(f"{made} a column of {len(column_N)} rows; expected {num_rows}")


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
    quantiles, kept = (one.get(WATCH_QUANTILES, {}) for one in (rules, earlier.rules))
    quantiles.update({task: rule for task, rule in kept.items() if task in quantiles})
    there = earlier.rules.get(LABELS, {})  # a run that learnt labels unchanged has none
    for task in {task.name for task in earlier.config.tasks} & {t.name for t in today.config.tasks}:
        new = rules[LABELS].pop(task, None)
        if task in there:
            rules[LABELS][task] = continued(there[task], new)
    for column, new in rules.get(DOMAINS, {}).items():
        known = earlier.rules.get(DOMAINS, {}).get(column)
        if known is not None:
            rules[DOMAINS][column] = known.with_new(new)
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
        if not isinstance(codec, IdCodec):
            continue
        frozen = codec.table in today.config.frozen_tables
        for name in () if frozen else codec.feature.known_elsewhere:
            own, other = tables[codec.table], tables.get(name)
            if isinstance(own, Vocabulary) and isinstance(other, Vocabulary):
                tables[codec.table] = own.without(other, codec.label(origin))
