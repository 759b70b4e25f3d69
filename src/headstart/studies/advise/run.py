"""`headstart advise`: from a file of labeled rows to a chosen model, one page and a recipe per method."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config, file_hashes
from headstart.core.errors import ArtifactError
from headstart.core.lock import FolderLock
from headstart.corpus.read import readers
from headstart.corpus.read.stores import StoredObject
from headstart.evaluation.cost import PriceTag
from headstart.stages.finetune.recipe import AdaptFirst, FinetuneRecipe
from headstart.stages.init import run as init
from headstart.stages.init import start
from headstart.stages.runs.folder import RECIPE
from headstart.stages.runs.result import FinetuneRun, Run, Table
from headstart.studies.advise import curve, facts, final, page, rounds, texts
from headstart.studies.advise.cells import Cells
from headstart.studies.advise.methods import METHODS, Method, adapting_first, candidate_rates, distilling, row_passes
from headstart.studies.advise.prior import MOST_LABELS, PRIORS
from headstart.studies.advise.search import ADAPTING_SHARE, CORPUS_SHARE, Clock, Search, TriedMethod
from headstart.tasks.table_files import require_rows
from headstart.training.budget import Budget

ADVICE, PAGE, MARKDOWN = "advice.json", "advice.html", "advice.md"
_SETTINGS, _ROUNDS, _DATA = "advise.json", "rounds", "data"


@dataclass(frozen=True)
class AdviseOptions:
    """What a user can decide; everything else is inferred from the data."""

    text: Sequence[str] = ()
    label: str | None = None
    group: str | None = None
    model: str | None = None
    minutes: float = 15.0
    output: Path | None = None
    corpus: Sequence[str] = ()


class Advice(Run):
    """The result of `headstart.advise`: the chosen model, the table of methods, and the recommendation."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of `advice.json`."""
        values: dict[str, Any] = json.loads((self.path / ADVICE).read_text(encoding="utf-8"))
        return values

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The filled recipe of the chosen model."""
        return self.model.recipe

    @cached_property
    def model(self) -> FinetuneRun:
        """The chosen model, which can predict."""
        return FinetuneRun(self.path / final.MODEL)

    @cached_property
    def table(self) -> Table:
        """One row per method that ran, with scores on held-out rows and costs."""
        return Table(self.manifest["methods"])

    @property
    def scores(self) -> Table:  # type: ignore[override]
        """The same as `table`."""
        return self.table

    @property
    def recommendation(self) -> str:
        """The sentences at the end of the page."""
        return "\n".join(page.sentences(self.manifest))

    @cached_property
    def cost(self) -> PriceTag:
        """The measured cost of all methods and of the final training."""
        return PriceTag.from_dict(self.manifest["cost"])

    def summary(self) -> str:
        """Return the text that `headstart advise` prints."""
        return page.summary(self.manifest, self.path)


def run(data: Path, options: AdviseOptions | None = None, quiet: bool = False) -> Path:
    """Try methods on labeled rows within the time budget, train the chosen model and write the page.

    Finished cells are reused, and only their recorded time counts, so the same command run again changes nothing.
    """
    options = options or AdviseOptions()
    require_rows(data)
    corpus = readers.expand(options.corpus, "--corpus")
    output = options.output or Path("runs", f"{data.stem}-advice")
    model = start.find_model(options.model)
    settings = _settings(data, options, model)
    _require_own_folder(output, settings)
    output.mkdir(parents=True, exist_ok=True)
    with FolderLock(output):
        artifact.write_whole(output / _SETTINGS, json.dumps(settings, indent=2) + "\n")
        _prepare(data, options, model, output)
        base = config.load(output / _DATA / "finetune.yaml", FinetuneRecipe)
        _advise(output, base, 60 * options.minutes, corpus, quiet)
    return output


def _advise(
    output: Path, base: FinetuneRecipe, seconds: float, corpus: Sequence[Path | StoredObject], quiet: bool
) -> None:
    cells = Cells(output, base, rounds.read(output / _ROUNDS), torch.get_num_threads())
    clock = Clock(seconds, reserved=CORPUS_SHARE * seconds if corpus else 0.0)
    labels = sum(cells.rounds[0].rows.values())
    is_of_numbers = getattr(base.task, "regression", False)
    known = PRIORS if labels <= MOST_LABELS and not is_of_numbers else {}
    search = Search(cells.run, lambda method: candidate_rates(method, base), _forecast(base, cells), clock, known)
    search.try_methods([method for method in METHODS if not method.is_trained])
    learning = curve.measure(search.results, cells, clock)
    search.try_methods([method for method in METHODS if method.is_trained])
    methods = list(METHODS)
    if corpus and search.best_network is not None:
        best = search.best_network
        methods.append(adapting_first(best.method, best.rate, base, _adapt_first(output, corpus, seconds)))
        search.try_last(methods[-1])
        student = _distilling(output, base, cells.rounds[0].rows["train"], corpus, search.best_network)
        if student is not None:
            methods.append(student)
            search.try_last(student)
    outcome = search.finished(methods)
    final.write_recipes(output, outcome, base)
    folder = final.train(output, outcome, base, quiet)
    advice = {
        **facts.of_data(artifact.read_manifest(output / _ROUNDS), base, artifact.read_manifest(folder)),
        **facts.of_search(outcome, clock),
        "curve": facts.of_curve(learning, artifact.read_manifest(folder)["data"]["train_rows"]),
        "test": final.score_test_rows(folder, outcome.best_network.method.name),
        "opened_for": final.opened_for(output),
        "chosen_model": _measured(output, folder, base),
    }
    advice["cost"] = (PriceTag.from_dict(advice["cost"]) + PriceTag.from_dict(advice["test"]["cost"])).to_dict()
    artifact.write_whole(output / ADVICE, json.dumps(advice, indent=2, ensure_ascii=False) + "\n")
    artifact.write_whole(output / MARKDOWN, page.markdown(advice))
    artifact.write_whole(output / PAGE, page.html(advice))


def _adapt_first(output: Path, corpus: Sequence[Path | StoredObject], seconds: float) -> AdaptFirst:
    """Return how the checkpoint is pre-trained on a corpus; a pre-training that has begun keeps its budget."""
    folder = output / f"adapted-{config.fingerprint(readers.describe(corpus))}"
    budget = f"{max(1, round(ADAPTING_SHARE * seconds))} s"
    if (folder / RECIPE).is_file():
        budget = config.parse(folder / RECIPE)["training"]["budget"]
    texts = [str(file.absolute()) if isinstance(file, Path) else file.url for file in corpus]
    return AdaptFirst(texts=texts, budget=budget, folder=folder)


def _distilling(
    output: Path, base: FinetuneRecipe, train: int, corpus: Sequence[Path | StoredObject], best: TriedMethod
) -> Method | None:
    """Return the method that learns from the best network on texts of the corpus; None if the task reads no texts."""
    column = texts.column_of(base)
    if column is None:
        return None
    path, count = texts.write(output, corpus, column, train * max(1, round(Budget.parse(base.training.budget).amount)))
    return distilling(best.method, best.rate, base, path, count, train)


def _measured(output: Path, folder: Path, base: FinetuneRecipe) -> dict[str, Any]:
    """Return latency and size of the chosen model; an earlier measurement of the same weights is kept."""
    identity = artifact.identity(folder)
    path = output / ADVICE
    known = json.loads(path.read_text(encoding="utf-8")).get("chosen_model", {}) if path.is_file() else {}
    if known.get("identity") == identity:
        return dict(known)
    return {"identity": identity, **final.measure(folder, final.sample_texts(base))}


def _forecast(base: FinetuneRecipe, cells: Cells) -> Any:
    """Return a function that forecasts a cell's seconds from those of the last network, by the rows they read."""
    rows = cells.rounds[0].rows
    order = {method.name: method for method in METHODS}

    def forecast(method: Method, measured: Mapping[str, float]) -> float | None:
        if method.adapt_first is not None and method.adaptation in measured:
            probes = (method.adapt_first.checkpoints + 1) * measured.get("linear_probe", 0.0)
            return measured[method.adaptation] + probes
        teacher = 0.0 if method.teacher is None else measured.get(method.teacher.method.name, 0.0)
        known = [name for name in order if name in measured and name != method.name]
        if not known:
            return None
        last = order[known[-1]]
        passes = [row_passes(r, base, rows["train"], rows["validation"], rows["test"]) for r in (method, last)]
        return teacher + measured[last.name] * passes[0] / passes[1]

    return forecast


def _settings(data: Path, options: AdviseOptions, model: str) -> dict[str, Any]:
    """Return what the cells of a folder depend on; the time budget is not part of it."""
    given = asdict(options)
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    content = config.fingerprint([[path.relative_to(data).as_posix(), file_hashes.sha256(path)] for path in files])
    columns = {name: list(given[name]) if name == "text" else given[name] for name in ("text", "label", "group")}
    return {**columns, "model": model, "checkpoint": artifact.identity(folder_of(model))[:16], "data": content}


def _require_own_folder(output: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder of other advice, or with other files."""
    path = output / _SETTINGS
    if path.is_file():
        previous = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key in settings if settings[key] != previous.get(key)]
        # A command that failed before it divided the rows has computed nothing.
        if changed and artifact.is_complete(output / _ROUNDS):
            raise ArtifactError(
                f"{output} contains advice with another {', '.join(changed)}",
                allowed="A folder belongs to one file of labeled rows and one checkpoint",
                do="Pass --output FOLDER, or delete that folder",
            )
    elif output.exists() and (not output.is_dir() or any(not e.name.startswith(".") for e in output.iterdir())):
        raise ArtifactError(
            f"{output} contains files that do not belong to `headstart advise`",
            allowed="An output folder is new, empty, or that of the same command",
            do="Pass --output FOLDER",
        )


def _prepare(data: Path, options: AdviseOptions, model: str, output: Path) -> None:
    """Divide the rows as `headstart init` does, and those that are not for testing into rounds."""
    if artifact.is_complete(output / _ROUNDS):
        return
    shutil.rmtree(output / _DATA, ignore_errors=True)
    wanted = init.InitOptions(options.text, options.label, options.group, model, output / _DATA)
    rounds.write(output / _ROUNDS, init.run(data, wanted), options.group)
