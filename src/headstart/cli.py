"""The command line: a verb, a recipe, dotted overrides. Everything else happens in the stages."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from headstart.core import artifact
from headstart.core.errors import HeadstartError, RecipeError
from headstart.stages.runs import environment, launch

_STOPPED = 130
_RANK, _WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
"""Which of how many processes this is, as `torchrun` says."""

app = typer.Typer(
    help="Pre-train a language model once on your own text, fine-tune it for many tasks, "
    "and know what each step bought and cost.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

Recipe = Annotated[str, typer.Argument(help="A YAML recipe; recipes/… also finds those that the package ships.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. training.budget='5 min'.")]
StudyOverrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, e.g. seeds=10 or execution.workers=4.")
]
IndexOverrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. passages.limit=1000.")]
StudyFile = Annotated[str, typer.Argument(help="A YAML file of studies/.", metavar="STUDY")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar or lines.")]


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    if debug:
        os.environ["HEADSTART_DEBUG"] = "1"


@app.command()
def corpus(
    what: Annotated[str, typer.Argument(help="A YAML recipe; or stats, explain, sample or diff.")],
    more: Annotated[list[str] | None, typer.Argument(help="Overrides; or a corpus's folder, two for diff.")] = None,
    explain: Annotated[int | None, typer.Option(min=1, help="Show so many dropped documents of each rule.")] = None,
    rule: Annotated[str | None, typer.Option(help="For explain: one rule alone.")] = None,
    number: Annotated[int, typer.Option(min=1, help="For explain and sample: how many documents.")] = 5,
    seed: Annotated[int, typer.Option(help="For sample: the same seed draws the same documents.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Raw text → a cleaned, deduplicated, documented corpus; or a look at one, or at how two differ."""
    from headstart.core import config
    from headstart.stages.corpus import run as stage
    from headstart.stages.corpus.recipe import CorpusRecipe

    if what in stage.LOOKS:
        _print(stage.look(what, more or [], number=number, rule=rule, seed=seed, as_json=as_json))
        return
    filled = config.load(what, CorpusRecipe, more or [])
    before = _finished(filled.output)
    folder = stage.run(filled, quiet)
    _say_if_finished_before(before, folder)
    looked = ("stats", 0) if explain is None else ("explain", explain)
    _print(stage.look(looked[0], [str(folder)], number=looked[1], rule=rule, seed=seed, as_json=as_json))


@app.command()
def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    processes: Annotated[int, typer.Option(min=1, help="Processes on this machine that train together.")] = 1,
    restarts: Annotated[int, typer.Option(min=0, help="How often to start again by itself after one died.")] = 0,
) -> None:
    """Raw text → checkpoint. An unfinished run of the same recipe goes on."""
    from headstart.core import config
    from headstart.stages.pretrain import run as stage
    from headstart.stages.pretrain.recipe import PretrainRecipe

    filled = config.load(recipe, PretrainRecipe, overrides or [])
    before = _finished(filled.output)
    if (processes > 1 or restarts) and not before and "TORCHELASTIC_RUN_ID" not in os.environ:
        arguments = ["pretrain", recipe, *(overrides or []), *(["--quiet"] if quiet else [])]
        raise typer.Exit(launch.run(arguments, filled.output, processes, restarts))
    folder = stage.run(filled, quiet)
    if _RANK == 0:
        _say_if_finished_before(before, folder)
        _print(stage.summary(folder))


@app.command()
def finetune(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Checkpoint × task × adaptation → model, beside its baselines."""
    from headstart.core import config
    from headstart.stages.finetune import run as stage
    from headstart.stages.finetune.recipe import FinetuneRecipe

    _require_one_process("finetune")
    filled = config.load(recipe, FinetuneRecipe, overrides or [])
    before = _finished(filled.output)
    folder = stage.run(filled, quiet)
    _say_if_finished_before(before, folder)
    _print(stage.summary(folder))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A folder that Headstart finished.")],
    data: Annotated[Path, typer.Argument(help="Labelled rows for a fine-tuned model, raw text for a pre-trained one.")],
) -> None:
    """Score a model on other data; verifies the folder's hashes first."""
    from headstart.stages import evaluate as stage

    _print(json.dumps(stage.run(model, data), indent=2, ensure_ascii=False))


@app.command()
def generate(
    model: Annotated[Path, typer.Argument(help="A folder that Headstart finished, or any Hugging Face folder.")],
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue, or with blanks to fill, written ___.")],
    max_new_tokens: Annotated[int, typer.Option(help="Longest continuation.")] = 40,
    num_beams: Annotated[int, typer.Option(help="Beams of a search for the likeliest text.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="Draw at random; below 1 the likely is likelier.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among k tokens; for blanks: candidates shown.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest tokens of this joint share.")] = None,
    num_return_sequences: Annotated[int, typer.Option(help="Texts for each prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed draws the same texts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Text out of a model: continuations, filled blanks, candidates for hidden words."""
    from headstart.core import config
    from headstart.stages import generate as stage

    given = {
        "max_new_tokens": max_new_tokens, "num_beams": num_beams, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "num_return_sequences": num_return_sequences, "seed": seed,
    }  # fmt: skip
    found = stage.run(model, prompts, config.fill(stage.GenerateSettings, given, "generate"))
    _print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else stage.render(found))


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Scripts of `benchmarks/`; all of them by default.")] = None,
    quick: Annotated[bool, typer.Option(help="As little work as possible, and no page written.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of each side; the median counts.")] = None,
) -> None:
    """Speed, measured side by side: runs the benchmarks of a checkout and writes docs/results/performance.md."""
    from headstart.stages import bench as stage

    stage.run(names or [], quick, repetitions)


@app.command()
def index(recipe: Recipe, overrides: IndexOverrides = None, quiet: Quiet = False) -> None:
    """Raw text → an index of its passages, for search by meaning."""
    from headstart.core import config
    from headstart.stages.search import index as stage

    filled = config.load(recipe, stage.IndexRecipe, overrides or [])
    before = _finished(filled.output)
    folder = stage.run(filled, quiet)
    _say_if_finished_before(before, folder)
    _print(stage.summary(folder))


@app.command()
def search(
    index: Annotated[Path, typer.Argument(help="A folder that `headstart index` made.")],
    questions: Annotated[list[str] | None, typer.Argument(help="Questions; without any, one a line is read.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Passages shown for each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The passages of an index that answer a question best."""
    from headstart.stages.search import query as stage

    searcher = stage.Searcher(index)
    for question in questions or filter(str.strip, sys.stdin):
        answer = searcher.ask(question.strip(), count)
        _print(json.dumps(answer, ensure_ascii=False) if as_json else stage.render(answer))
    typer.echo(f"opened in {searcher.seconds:.1f} s", err=True)


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    best: Annotated[
        bool, typer.Option("--best", help="Choose size and vocabulary for the time budget, by measured runs.")
    ] = False,
) -> None:
    """The price tag before anything is spent, from a few steps timed on this machine."""
    from headstart import verbs

    if best:
        from headstart.stages.plan import best_size

        _print(best_size.render(best_size.run(verbs.load(recipe, overrides or []))))
        return
    from headstart.stages.plan import forecast as stage

    _print(stage.render(stage.run(verbs.load(recipe, overrides or []))))


study = typer.Typer(
    help="One question, a grid of cells, one table with seeds, tests, baselines and cost.", no_args_is_help=True
)
app.add_typer(study, name="study")


@study.command("plan")
def study_plan(study: StudyFile, overrides: StudyOverrides = None, quiet: Quiet = False) -> None:
    """The cells, what they share, and the forecast of time, energy and money, before anything is spent."""
    from headstart.studies import study as stage
    from headstart.studies.run import plan as planner

    _print(planner.render(planner.run(stage.load(study, overrides or []), quiet)))


@study.command("run")
def study_run(study: StudyFile, overrides: StudyOverrides = None, quiet: Quiet = False) -> None:
    """Run the cells that are missing; a study that was stopped goes on. Leaves with 1 if a hole remains."""
    from headstart.studies.run import workers as study_workers

    study_workers.warm_up()
    from headstart.studies import study as stage

    _require_one_process("study run")
    filled = stage.load(study, overrides or [])
    tally = stage.run(filled, quiet)
    _print("\n".join(stage.summary(stage.StudyState(filled), tally)))
    if tally.finished < tally.total:
        raise typer.Exit(1)


@study.command("table")
def study_table(
    study: StudyFile,
    overrides: StudyOverrides = None,
    form: Annotated[
        str | None, typer.Option("--format", help="md, csv or tex, in full; a screen's width without.")
    ] = None,
) -> None:
    """The table as it stands, unfinished rows greyed."""
    from headstart.studies import study as stage

    standing = stage.StudyState(stage.load(study, overrides or []))
    if form is None:
        from rich.console import Console

        from headstart.studies.render import terminal

        terminal.show(Console(), standing.scores, standing.verdicts)
        return
    if form not in stage.FORMS:
        raise RecipeError(f"--format is {form!r}", allowed=f"Known: {', '.join(stage.FORMS)}")
    typer.echo(stage.FORMS[form](standing.scores), nl=False)


@study.command("report")
def study_report(
    study: StudyFile,
    overrides: StudyOverrides = None,
    to: Annotated[Path | None, typer.Option(help="Folder for the page and tables; the study's own without.")] = None,
) -> None:
    """One HTML page that needs nothing beside it, and the tables as Markdown, CSV, Parquet and LaTeX."""
    from headstart.studies import study as stage
    from headstart.studies.render import report as reporter

    _print(reporter.run(stage.StudyState(stage.load(study, overrides or [])), to))


@study.command("power")
def study_power(
    study: StudyFile,
    overrides: StudyOverrides = None,
    difference: Annotated[float | None, typer.Option(help="Size of a difference, in the table's points.")] = None,
) -> None:
    """How many seeds and examples a difference needs, from the variance that was seen."""
    from headstart.studies import study as stage
    from headstart.studies.judge import seeds as stage_power

    _print(stage_power.run(stage.StudyState(stage.load(study, overrides or [])), difference))


@app.command("list")
def list_(
    group: Annotated[
        str | None, typer.Argument(help="objectives, backbones, tasks, adaptations, metrics or baselines.")
    ] = None,
) -> None:
    """What can be named in a recipe, with one line of help and its paper; without a group, the groups."""
    from headstart.core import registry

    if group is None:
        for name in registry.TABLES:
            typer.echo(f"{name:<12}  {', '.join(registry.names(name))}")
        return
    entries = registry.describe(group)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.name:<{width}}  {entry.help}" + (f"  [{entry.paper}]" if entry.paper else ""))


@app.command()
def schema(
    verb: Annotated[str, typer.Argument(help="corpus, pretrain, finetune, index or study.")] = "pretrain",
) -> None:
    """The JSON Schema of a recipe, for editors to complete and check from."""
    from headstart import verbs
    from headstart.core import config, registry

    known = verbs.by_verb()
    if verb not in known:
        raise RecipeError(
            f"there is no recipe for {verb!r}{registry.suggest(verb, known)}", allowed=f"Known: {', '.join(known)}"
        )
    typer.echo(json.dumps(config.schema(known[verb]), indent=2, ensure_ascii=False))


@app.command()
def doctor(
    run: Annotated[Path | None, typer.Argument(help="The output of a recipe, finished or under way.")] = None,
) -> None:
    """What this machine can do, and the settings that follow; or whether a run is healthy."""
    if run is not None:
        from headstart import verbs
        from headstart.stages.doctor import checkup

        _print(checkup.render(checkup.run(run, verbs.recipe_of_run(run))))
        return
    from headstart.stages.doctor import machine as stage

    _print(stage.render(stage.run()))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors meant for a person are printed without a traceback unless --debug is given."""
    if arguments is None:
        environment.keep_memory(sys.argv[1:])
    environment.silence(_WORLD_SIZE)
    if threading.current_thread() is threading.main_thread():
        # What the system asks for is answered like Ctrl-C; a run under way saves itself first.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(args=arguments, prog_name="headstart")
    except HeadstartError as error:
        if os.environ.get("HEADSTART_DEBUG"):
            raise
        # Processes that train together often fail together.
        typer.echo(f"headstart{f', rank {_RANK}' if _RANK else ''}: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        # Typer turns Ctrl-C into this code, without a word.
        if stop.code != _STOPPED:
            raise
        _leave_to_go_on()
    except KeyboardInterrupt:
        # It came before Typer listened.
        _leave_to_go_on()
    except Exception as error:
        if os.environ.get("HEADSTART_DEBUG"):
            raise
        refusal = artifact.explain(error)
        if refusal is not None:
            typer.echo(f"headstart: {refusal}", err=True)
            sys.exit(refusal.exit_code)
        typer.echo(
            f"headstart: {type(error).__name__}: {error}\nThis is a fault of ours; `headstart --debug …` shows where.",
            err=True,
        )
        sys.exit(1)


def _leave_to_go_on() -> NoReturn:
    if _RANK == 0:
        typer.echo("headstart: stopped; the same command goes on from here.", err=True)
    sys.exit(0 if launch.LAUNCHED in os.environ else launch.GO_ON)


def _require_one_process(verb: str) -> None:
    if _WORLD_SIZE > 1:
        raise RecipeError(
            f"headstart {verb} was started in {_WORLD_SIZE} processes",
            allowed="torchrun starts `headstart pretrain` alone",
            do=f"Run `headstart {verb}` without torchrun",
        )


def _finished(folder: Path) -> bool:
    return artifact.is_complete(folder)


def _say_if_finished_before(before: bool, folder: Path) -> None:
    if before:
        typer.echo(f"{folder} is finished already, by this very recipe; nothing was done.", err=True)


def _print(text: Any) -> None:
    typer.echo(text)
