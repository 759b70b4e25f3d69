"""`headstart study plan|run|table|report|power`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.options import DryRun, Quiet, require_one_process, show, show_log, show_recipe, show_summary
from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    from headstart.studies.definition import Study

app = typer.Typer(
    help="Answer one question with a grid of runs. One table has seeds, tests, baselines and cost.",
    no_args_is_help=True,
)

StudyFile = Annotated[
    str, typer.Argument(help="A YAML study; studies/… also finds those in the package.", metavar="STUDY")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. seeds=10 or execution.workers=4.")]


@app.command()
def plan(study: StudyFile, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Show the cells and forecast their cost. The forecast has time, energy and money, before anything is spent."""
    show_log(quiet)
    filled = _load(study, overrides)
    from headstart.studies.run import plan as planner

    show(planner.render(planner.run(filled, quiet)))


@app.command()
def run(study: StudyFile, overrides: Overrides = None, quiet: Quiet = False, dry_run: DryRun = False) -> None:
    """Run the missing cells. An interrupted study is resumed. Exits with code 1 if a cell is still missing."""
    show_log(quiet)
    filled = _load(study, overrides)
    if dry_run:
        from headstart.studies import study as stage

        _ = stage.StudyState(filled).graph  # validates the recipe of every cell
        show_recipe(filled)
        return
    from headstart.studies.run import workers

    workers.warm_up()
    from headstart.studies import study as stage

    require_one_process("study run")
    outcome = stage.run(filled, quiet)
    show_summary("\n".join(stage.summary(stage.StudyState(filled), outcome)))
    if outcome.finished < outcome.total:
        raise typer.Exit(1)


@app.command()
def table(
    study: StudyFile,
    overrides: Overrides = None,
    form: Annotated[
        str | None, typer.Option("--format", help="md, csv or tex for the complete table; fits the screen by default.")
    ] = None,
) -> None:
    """Show the current table, with unfinished rows in gray."""
    filled = _load(study, overrides)
    from headstart.studies import study as stage

    state = stage.StudyState(filled)
    if form is None:
        from rich.console import Console

        from headstart.studies.render import terminal

        terminal.show(Console(), state.scores, state.verdicts)
        return
    if form not in stage.FORMATS:
        raise RecipeError(f"--format is {form!r}", allowed=f"Known: {', '.join(stage.FORMATS)}")
    typer.echo(stage.FORMATS[form](state.scores), nl=False)


@app.command()
def report(
    study: StudyFile,
    overrides: Overrides = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder for the page and the tables; the study's output by default.")
    ] = None,
) -> None:
    """Write an HTML report. The page is self-contained; the tables are also Markdown, CSV, Parquet and LaTeX."""
    filled = _load(study, overrides)
    from headstart.studies import study as stage
    from headstart.studies.render import report as reporter

    show(reporter.run(stage.StudyState(filled), to))


@app.command()
def power(
    study: StudyFile,
    overrides: Overrides = None,
    difference: Annotated[float | None, typer.Option(help="Size of a difference, in points of the table.")] = None,
) -> None:
    """Show how many seeds a difference needs. Uses the observed variance over seeds and examples."""
    filled = _load(study, overrides)
    from headstart.studies import study as stage
    from headstart.studies.judge import seeds

    show(seeds.run(stage.StudyState(filled), difference))


def _load(study: str, overrides: list[str] | None) -> Study:
    """Read a study file; a wrong one is refused before torch is imported."""
    from headstart.studies import saved

    return saved.load(study, overrides or [])
