"""The commands that train many runs. Each imports what it needs when it runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mmoe.cli.options import (
    AsOf,
    ChangedData,
    DataOfConfig,
    Imports,
    Quiet,
    SetValues,
    config_of_command,
)
from mmoe.cli.output import (
    Place,
    advising_resume,
    by_time,
    folder_of,
    print_grids,
    print_json,
    print_table,
    reporter,
    resumes,
    say,
)

_ConfigFile = Annotated[
    str, typer.Argument(metavar="CONFIG.yaml", help="A config file, or a recipe.")
]


def backtest(
    recipe_or_config: Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="A config file.")],
    data: DataOfConfig = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of the day: dates, times (cut at midnight UTC) or whole numbers; default: "
            "data.split.column."
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="Number of last days to test; default: all but the first.")
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Train a new model every day, on all days so far."),
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(help="Days to train on; default: 1, or all so far with --from-scratch."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="A folder, or an address; default: runs/NAME-backtest-DATE-TIME."),
    ] = None,
    set_: SetValues = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue with the first unfinished day in --out.")
    ] = False,
    changed_data: ChangedData = False,
    as_of: AsOf = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Train day d, test day d + 1, walking forward; print every day and the total."""
    with folder_of(out, resume=resume) as place:
        resume = resumes(place.path, resume, "folder of the backtest", changed_data=changed_data)
        config, data = config_of_command(recipe_or_config, set_, import_, data, as_of)
        from mmoe.run.console import backtest_table
        from mmoe.train.backtest import BacktestSettings
        from mmoe.train.backtest import backtest as walk

        settings = BacktestSettings(
            column=column, days=days, from_scratch=from_scratch, window=window
        )
        asked = {"data": data, "resume": resume, "changed_data": changed_data}
        result, folder = _run_into(place, "backtest", walk, config, settings, quiet, **asked)
        print_table(backtest_table(result))
        say(folder)


def compare(
    recipe_or_config: _ConfigFile,
    models: Annotated[
        str,
        typer.Option(
            metavar="KIND,KIND,…", help="Kinds of models; each is compared with the first."
        ),
    ] = "single_task,shared_bottom,mmoe,ple",
    reference: Annotated[
        str | None,
        typer.Option(
            help="Compare with this model instead: a kind of --models, logistic_regression, "
            "boosted_trees or wide_part."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Runs per model: the config's seed, and those after it.")
    ] = 5,
    data: DataOfConfig = None,
    out: Annotated[
        str | None,
        typer.Option(help="A folder, or an address; default: runs/NAME-compare-DATE-TIME."),
    ] = None,
    set_: SetValues = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out, also with more models or seeds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as compare.json.")] = False,
    as_of: AsOf = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Train several models with several seeds; logistic regression and trees beside them.

    The last line says which model wins each task.
    """
    with folder_of(out, resume=resume) as place:
        resume = resumes(place.path, resume, "folder of the comparison")
        config, data = config_of_command(recipe_or_config, set_, import_, data, as_of)
        from mmoe.compare import ComparisonSettings, compare_models
        from mmoe.report.comparison import comparison_grids, describe_winners

        settings = ComparisonSettings.of_text(models, seeds, reference)
        asked = {"data": data, "resume": resume}
        result, folder = _run_into(
            place, "compare", compare_models, config, settings, quiet, **asked
        )
        if as_json:
            print_json(result)
            return
        print_grids(comparison_grids(result))
        say(f"{folder}/compare.html")
        say(describe_winners(result))


def tune(
    recipe_or_config: _ConfigFile,
    trials: Annotated[int, typer.Option(help="Most trials, those before --resume included.")] = 20,
    minutes: Annotated[
        float, typer.Option(help="Time limit in minutes; a running trial is stopped then.")
    ] = 15,
    data: DataOfConfig = None,
    out: Annotated[
        str | None, typer.Option(help="A folder, or an address; default: runs/NAME-tune-DATE-TIME.")
    ] = None,
    set_: SetValues = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out, for --minutes more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as tune.json.")] = False,
    as_of: AsOf = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Search for better settings on the validation split, and write the best config."""
    with folder_of(out, resume=resume) as place:
        resume = resumes(place.path, resume, "folder of the search")
        config, data = config_of_command(recipe_or_config, set_, import_, data, as_of)
        from mmoe.tune import TuneSettings, tune_config
        from mmoe.tune.search import search_table

        settings = TuneSettings(trials=trials, minutes=minutes)
        asked = {"data": data, "resume": resume}
        result, folder = _run_into(place, "tune", tune_config, config, settings, quiet, **asked)
        if as_json:
            print_json(result)
            return
        print_table(search_table(result))
        if result["best"] is not None:
            say(f"next: mmoe train {folder}/best.yaml")


def _run_into(
    place: Place,
    name: str,
    work: Callable[..., Any],
    config: Any,
    settings: Any,
    quiet: bool,
    **asked: Any,
) -> tuple[Any, str]:
    """Runs a command of many trainings; returns its result and folder."""
    folders: list[Path] = []
    with advising_resume():
        result = work(
            config,
            place.path or by_time(f"{config.name}-{name}"),
            settings,
            numbered=place.path is None,
            reporter=reporter(quiet),
            on_folder=folders.append,
            **asked,
        )
    return result, place.shown(folders[0])
