"""What more tasks cost: a whole training step of 64 over one of 2, and other forms over ours."""

from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.task_forms import RechubForm, TzrecForm
from benchmarks.sharing.task_steps import Steps, many_tasks

FEW, MANY = 2, 64
FORMS = {"rechub": RechubForm, "tzrec": TzrecForm}
OVER_FEW = f"tasks_{MANY}_over_{FEW}"
FORM_KEYS = tuple(f"vs_{name}_form_T{MANY}" for name in FORMS)


def over_few_tasks(bench: Bench) -> list[Result]:
    """Ours with many tasks over ours with two."""
    steps = {f"{tasks} tasks": Steps(many_tasks(tasks)).of() for tasks in (FEW, MANY)}
    times = bench.clock.race(OVER_FEW, steps)
    many, few = f"{MANY} tasks", f"{FEW} tasks"
    return [speedup(OVER_FEW, times, many, few, "ours, ms: of two tasks")]


def over_other_forms(bench: Bench) -> list[Result]:
    """Networks as others write them over ours, all else alike."""
    steps = Steps(many_tasks(MANY))
    contestants = {"mmoe": steps.of(), **{name: steps.of(form) for name, form in FORMS.items()}}
    times = bench.clock.race(" and ".join(FORM_KEYS), contestants)
    return [speedup(key, times, name) for key, name in zip(FORM_KEYS, FORMS, strict=True)]


RACES = (Race((OVER_FEW,), over_few_tasks), Race(FORM_KEYS, over_other_forms))
