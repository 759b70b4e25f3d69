"""A folder for a model hub, and its upload if that is asked for."""

from __future__ import annotations

from pathlib import Path

from headstart.core.errors import RecipeError
from headstart.stages.export import hub_card
from headstart.stages.export.comparison import Comparison
from headstart.stages.export.format import require_package
from headstart.stages.export.formats.merged import Merged
from headstart.stages.export.settings import ExportSettings
from headstart.stages.export.source import Source


class Hub(Merged):
    """A folder for the Hugging Face Hub, with its card; uploaded only with --upload."""

    def __init__(self, settings: ExportSettings) -> None:
        """Check that an upload has a repository."""
        super().__init__(settings)
        if settings.upload and not settings.repo:
            raise RecipeError(
                "--upload is set, but --repo is not",
                allowed="An upload needs the name of a repository",
                do="Set --repo, such as --repo name/model",
            )

    def card(self, source: Source, comparison: Comparison) -> str:
        """Return the card with the metadata that the Hub reads."""
        return hub_card.write(source.facts, self.settings, self.usage(source), comparison)

    def after(self, folder: Path) -> list[str]:
        """Upload the folder, or list what an upload would send."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        total = sum(path.stat().st_size for path in files) / 1e6
        names = ", ".join(path.relative_to(folder).as_posix() for path in files)
        if not self.settings.upload:
            return [f"dry run: --upload would send {len(files)} files, {total:,.1f} MB: {names}"]
        hub = require_package("huggingface_hub", self.settings.to).HfApi()
        assert self.settings.repo is not None
        hub.create_repo(self.settings.repo, exist_ok=True, private=True)
        hub.upload_folder(repo_id=self.settings.repo, folder_path=str(folder))
        return [f"uploaded {len(files)} files, {total:,.1f} MB, to the private repository {self.settings.repo}"]
