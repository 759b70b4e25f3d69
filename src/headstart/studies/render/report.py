"""Write the report of a study: the page, a short version in Markdown, and the tables in every format."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

from headstart.core import artifact, config
from headstart.core.recipes import text as recipe_text
from headstart.core.recipes import variables
from headstart.evaluation.cost import PriceTag
from headstart.studies.graph import Node, is_finished
from headstart.studies.judge import curve_tables, curves
from headstart.studies.judge.tables import StudyTable
from headstart.studies.render import formats
from headstart.studies.render.figures import Figures
from headstart.studies.render.page import PageSection, Report, Sheet, render_report
from headstart.studies.run import engine as study_engine
from headstart.studies.study import DEFINITION, TABLES, StudyState

PAGE, SHORT_PAGE = "report.html", "report.md"
_MOST_RECIPES = 12


def run(state: StudyState, target: Path | None = None) -> Path:
    """Write the page, its short version in Markdown and the tables; return the path of the page."""
    study = state.study
    folder = target or study.output
    crossings = curve_tables.crossings(study, state.results)
    tables = [*state.tables(), *([] if crossings is None else [crossings])]
    sheets = curve_tables.sheets(study, state.results)
    for table in [*tables, *sheets]:
        formats.write_all(table, folder / TABLES)
    overtaking, summary, figures = _overtaking(state), _summary(state), Figures(state)
    sections = [
        *(PageSection(table.title, tables=[Sheet.of(table, "")]) for table in overtaking),
        PageSection("Scores", figures.scores(), [Sheet.of(sheet) for sheet in sheets]),
        PageSection("Score against cost", figures.costs()),
        PageSection("Forgetting against gain", figures.forgetting()),
        PageSection("Training", figures.training()),
    ]
    page = render_report(
        Report(
            study.question,
            state.verdicts,
            summary,
            [section for section in sections if section.figures or section.tables],
            [Sheet.of(table) for table in tables if table.rows],
            _recipes(state),
            artifact.versions(),
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    artifact.write_whole(folder / PAGE, page)
    short = formats.markdown_page(study.question, state.verdicts, summary, [*overtaking, *sheets])
    artifact.write_whole(folder / SHORT_PAGE, short)
    return folder / PAGE


def _summary(state: StudyState) -> list[str]:
    """Return how many cells are finished, what they cost, which are missing, and which baselines are left out."""
    graph, output = state.graph, state.study.output
    finished = [name for name in graph.nodes if is_finished(output, name)]
    lines = [f"{len(finished):,} of {len(graph.nodes):,} cells are finished, {state.study.seeds} seeds."]
    tags = [PriceTag.from_dict(tag) for name in finished if (tag := study_engine.price(output, name)).get("flops")]
    if tags:
        lines.append(f"Training cost {reduce(add, tags).sentence()}.")
    lines += [
        f"Missing cell: {missing.cell.system.name} in {'/'.join(missing.cell.context) or 'its context'}, "
        f"seed {missing.cell.seed}: {missing.reason}"
        for missing in state.results.all_missing
        if missing.reason
    ]
    all_results = (state.results, *state.results.outcomes.values())
    reasons = {(system.name, reason) for each in all_results for (system, _), reason in each.left_out.items()}
    lines += [f"{name} is left out: {reason.removesuffix('.')}." for name, reason in sorted(reasons)]
    return lines


def _overtaking(state: StudyState) -> list[StudyTable]:
    """Return one table for each numeric axis: from where on each system is above the reference."""
    study = state.study
    tables = [curve_tables.overtaking(study, state.results, axis) for axis in curves.numeric_axes(study)]
    return [table for table in tables if table is not None]


def _recipes(state: StudyState) -> dict[str, str]:
    """Return the study and one filled recipe of each system and each pre-training."""
    recipes = {DEFINITION: config.to_yaml(state.study)}
    nodes: dict[str, Node] = {}
    for cell in state.graph.cells:
        nodes.setdefault(cell.system.name, state.graph.nodes[cell.node])
    for node in state.graph.nodes.values():
        if node.kind == "pretrain":
            nodes.setdefault(node.id, node)
    for name, node in list(nodes.items())[:_MOST_RECIPES]:
        recipes[f"{name} ({node.id})"] = recipe_text.dump(variables.written(node.recipe))
    return recipes
