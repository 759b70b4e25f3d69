"""Build the source archive and the wheel twice, and check that both builds are equal and contain what they should.

    python .ci/archives.py --outdir dist

It builds the last commit, not the working tree, with the hatchling that is installed. Each build has its own folder,
time zone and file mode mask. `SOURCE_DATE_EPOCH` is the time of the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST_MB = 12
SHIPPED = (
    "headstart/py.typed",
    "headstart/shipped/recipes/quickstart/pretrain.yaml",
    "headstart/shipped/recipes/quickstart/finetune.yaml",
    "headstart/shipped/recipes/quickstart/data/kjv.txt.gz",
    "headstart/shipped/recipes/quickstart/data/order-train.csv",
    "headstart/shipped/studies/quickstart.yaml",
)
"""What the quickstart needs, away from a clone."""


class BadArchive(Exception):
    """An archive that must not be published; the message says why."""


def git(*arguments: str) -> bytes:
    """Return what a git command prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def build(work: Path, zone: str, mask: int) -> list[Path]:
    """Build both archives of the last commit in a folder, and return them sorted by name."""
    source, target = work / "source", work / "dist"
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(source, filter="data")
    variables = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").decode().strip(), "TZ": zone}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, env=variables, umask=mask, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadArchive(f"the build failed:\n{done.stdout}{done.stderr}")
    return sorted(target.iterdir())


def require_equal(first: list[Path], second: list[Path]) -> None:
    """Raise if two builds differ in a name or a byte."""
    if [path.name for path in first] != [path.name for path in second]:
        raise BadArchive(f"the builds have different files: {first} and {second}")
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise BadArchive(f"two builds of {one.name} differ: the build is not reproducible")


def require_content(archives: list[Path], tracked: set[str]) -> None:
    """Raise if the source archive is not the tracked files, or the wheel lacks or adds something."""
    wheel, source = (next(path for path in archives if path.name.endswith(end)) for end in (".whl", ".tar.gz"))
    with tarfile.open(source) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    if wrong := (files - {"PKG-INFO"}) ^ tracked:
        raise BadArchive(f"{source.name} and the tracked files differ in {sorted(wrong)[:10]}")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    if missing := set(SHIPPED) - names:
        raise BadArchive(f"{wheel.name} lacks {sorted(missing)}")
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
    if other := [name for name in names if not name.startswith(("headstart/", info))]:
        raise BadArchive(f"{wheel.name} has files outside of the package: {sorted(other)[:10]}")
    if info + "licenses/LICENSE" not in names:
        raise BadArchive(f"{wheel.name} has no license")
    for path in archives:
        if path.stat().st_size > LARGEST_MB * 1e6:
            raise BadArchive(f"{path.name} is larger than {LARGEST_MB} MB")


def require_version(archives: list[Path], tag: str) -> None:
    """Raise if the archives or the changelog do not have the version of a tag such as v0.1.0."""
    version = tag.removeprefix("v")
    if wrong := [path.name for path in archives if not path.name.startswith(f"headstart-{version}")]:
        raise BadArchive(f"the tag {tag} does not fit {wrong}; set __version__ in src/headstart/__init__.py")
    if f"## [{version}]" not in git("show", "HEAD:CHANGELOG.md").decode():
        raise BadArchive(f"CHANGELOG.md has no section [{version}]; rename Unreleased before the tag")


def main() -> None:
    """Build, check, and write the archives and their hashes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist")
    parser.add_argument("--tag", default="", help="the tag that is released; its version is checked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        first = build(Path(work) / "first", "UTC", 0o022)
        second = build(Path(work) / "a-second-folder", "Asia/Tokyo", 0o077)
        try:
            require_equal(first, second)
            require_content(first, set(git("ls-tree", "-r", "-z", "--name-only", "HEAD").decode().split("\0")) - {""})
            if options.tag:
                require_version(first, options.tag)
        except BadArchive as error:
            raise SystemExit(f"archives: {error}") from None
        options.outdir.mkdir(parents=True, exist_ok=True)
        lines = []
        for path in first:
            content = path.read_bytes()
            (options.outdir / path.name).write_bytes(content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
            print(f"{len(content) / 1e6:5.1f} MB  {lines[-1]}", end="")
        (options.outdir / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
