"""A folder for a model hub, and its upload if that is asked for."""

from __future__ import annotations

import shlex
from pathlib import Path

from headstart.core.errors import ArtifactError, RecipeError, ResourceError, shorten
from headstart.stages.export import hub_card
from headstart.stages.export.comparison import Comparison
from headstart.stages.export.format import require_package
from headstart.stages.export.formats.merged import Merged
from headstart.stages.export.settings import ExportSettings
from headstart.stages.export.source import Source

_REASON = 300
"""The most characters that are shown of a library's error message."""


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
        repository = self._upload(folder)
        return [f"uploaded {len(files)} files, {total:,.1f} MB, to the private repository {repository}"]

    def _upload(self, folder: Path) -> str:
        """Send the folder to a private repository, which is created if there is none, and return its name.

        A public one is refused, so that nothing is published by mistake.
        """
        hub, repository = require_package("huggingface_hub", self.settings.to).HfApi(), self.settings.repo
        try:
            # A name without an owner gets that of the token.
            repository = hub.create_repo(repository, exist_ok=True, private=True).repo_id
            is_private = hub.repo_info(repository).private
            if is_private:
                hub.upload_folder(repo_id=repository, folder_path=str(folder))
        except Exception as error:
            # Errors of the connection are those of the HTTP library, which differs between versions of huggingface_hub.
            raise _failed(error, str(repository), folder) from error
        if not is_private:
            raise ArtifactError(
                f"{repository} is a public repository, and nothing was uploaded to it",
                allowed=f"--upload sends to a private repository; the export in {folder} is complete",
                do="Make the repository private, or choose another --repo. To publish it, run "
                f"`hf upload {repository} {shlex.quote(str(folder))} .`",
            )
        return str(repository)


def _failed(error: Exception, repository: str, folder: Path) -> ResourceError:
    """Return the error for an upload that failed."""
    from huggingface_hub import constants

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, ValueError):
        advice = "Correct --repo, --license or --language"
    elif status is None or status >= 500:
        advice = "Check the connection (HF_HUB_OFFLINE, HF_ENDPOINT)"
    elif status == 401:
        advice = "Run `hf auth login`, or set HF_TOKEN to a token that may write"
    else:
        advice = f"Use a token that may write to {repository}"
    reason = shorten(" ".join(str(error).split()), _REASON)
    return ResourceError(
        f"the export could not be uploaded to {repository} on {constants.ENDPOINT} ({reason})",
        allowed=f"The export in {folder} is complete",
        do=f"{advice}; then run the same command with --overwrite",
    )
