"""What is published: two builds are equal, contain what they should, and a faulty archive is refused."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
INFO = "headstart-1.0.dist-info/"


@pytest.fixture(scope="module")
def archives(load_script):
    return load_script(".ci/archives.py")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def fake_archives(folder: Path, wheel: list[str], source: list[str]) -> list[Path]:
    """A wheel and a source archive with empty files of the given names."""
    paths = [folder / "headstart-1.0-py3-none-any.whl", folder / "headstart-1.0.tar.gz"]
    with zipfile.ZipFile(paths[0], "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    with tarfile.open(paths[1], "w:gz") as archive:
        for name in source:
            archive.addfile(tarfile.TarInfo(f"headstart-1.0/{name}"), io.BytesIO())
    return paths


@pytest.mark.slow
def test_two_builds_are_equal_and_complete(tmp_path):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git here; un-skipped in a clone")
    command = [sys.executable, str(ROOT / ".ci" / "archives.py"), "--outdir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert sorted(line.rpartition(".")[2] for line in lines) == ["gz", "whl"]
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        assert (
            "headstart = headstart.cli:main"
            in archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()
        )


@pytest.mark.parametrize(
    ("more", "less", "source", "reason"),
    [
        ([], [], ["a.py", "PKG-INFO"], None),
        ([], [], ["a.py", "PKG-INFO", "secret.txt"], "secret.txt"),
        ([], [], ["PKG-INFO"], "a.py"),
        (["tests/test_a.py"], [], ["a.py"], "outside of the package"),
        ([], ["headstart/py.typed"], ["a.py"], "lacks"),
        ([], [INFO + "licenses/LICENSE"], ["a.py"], "no license"),
    ],
)
def test_a_faulty_archive_is_refused(archives, tmp_path, more, less, source, reason):
    wheel = [name for name in (*archives.SHIPPED, INFO + "licenses/LICENSE", *more) if name not in less]
    paths = fake_archives(tmp_path, wheel, source)
    if reason is None:
        archives.require_content(paths, {"a.py"})
    else:
        with pytest.raises(archives.BadArchive, match=reason):
            archives.require_content(paths, {"a.py"})


def test_different_builds_are_refused(archives, tmp_path):
    builds = []
    for name, text in (("first", "a"), ("second", "b")):
        (tmp_path / name).mkdir()
        builds.append([tmp_path / name / "headstart-1.0.tar.gz"])
        builds[-1][0].write_text(text, encoding="utf-8")
    archives.require_equal(builds[0], builds[0])
    with pytest.raises(archives.BadArchive, match="not reproducible"):
        archives.require_equal(*builds)


def test_tools_of_the_site_and_the_release_are_pinned_and_not_in_dev():
    extras = project()["optional-dependencies"]
    for extra in ("site", "release"):
        assert all("==" in line for line in extras[extra])
        assert not [line for line in (*extras["dev"], *extras["all"]) if extra in line.partition("[")[2]]


def test_the_page_of_licenses_has_every_direct_dependency(load_script):
    page = (ROOT / "docs" / "licenses.md").read_text(encoding="utf-8")
    direct = {each for lines in load_script("docs/make_licenses.py").requirements().values() for each in lines}
    assert direct
    names = {canonicalize_name(each.name) for each in direct}
    assert not sorted(name for name in names if f"| {name} |" not in page), "run `make licenses`"


@pytest.mark.parametrize(
    ("text", "extras", "applies"),
    [
        ("a", [], True),
        ("a; extra == 'b'", [], False),
        ("a; extra == 'b'", ["b"], True),
        ("a; os_name == 'nt'", [], False),
    ],
)
def test_requirements_apply_by_platform_and_extra(load_script, text, extras, applies):
    assert load_script("docs/make_licenses.py").applies(Requirement(text), frozenset(extras)) is applies


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_forms_are_yaml(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_publishing_needs_no_stored_token():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write" and publish["environment"] == "pypi"
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("licenses", "refused"),
    [
        ([{"license": {"id": "MIT"}}], False),
        ([{"expression": "MPL-1.1 OR GPL-2.0-only OR LGPL-2.1-or-later"}], False),
        ([{"license": {"id": "LGPL-2.1-only"}}], False),
        ([{"license": {"name": "GNU Lesser General Public License v3 (LGPLv3)"}}], False),
        ([{"license": {"id": "AGPL-3.0-only"}}], True),
        ([{"license": {"name": "GNU General Public License v3 (GPLv3)"}}], True),
        ([], True),
    ],
)
def test_a_license_that_cannot_be_used_freely_is_refused(load_script, tmp_path, monkeypatch, licenses, refused):
    script = load_script(".ci/licenses.py")
    component = {"name": "package", "version": "1.0", "licenses": licenses}
    assert bool(script.problem(component, {})) is refused
    (tmp_path / "sbom.json").write_text(json.dumps({"components": [component]}), encoding="utf-8")
    monkeypatch.setattr(
        sys, "argv", ["licenses.py", str(tmp_path / "sbom.json"), str(tmp_path / "licenses.csv"), str(tmp_path)]
    )
    with pytest.raises(SystemExit) if refused else contextlib.nullcontext():
        script.main()
    assert (tmp_path / "licenses.csv").read_text(encoding="utf-8").startswith("package,version,license\npackage,1.0,")


@pytest.mark.parametrize(("license_text", "refused"), [("Apache 2.0 License", False), ("GPLv3", True), ("", True)])
def test_a_license_in_free_text_is_read_from_the_environment(load_script, tmp_path, monkeypatch, license_text, refused):
    """The tool that lists the components leaves such licenses out."""
    metadata = tmp_path / "package-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        f"Metadata-Version: 2.1\nName: package\nVersion: 1.0\nLicense: {license_text}\n", encoding="utf-8"
    )
    sbom, table = tmp_path / "sbom.json", tmp_path / "licenses.csv"
    sbom.write_text(json.dumps({"components": [{"name": "package", "version": "1.0"}]}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["licenses.py", str(sbom), str(table), str(tmp_path)])
    with pytest.raises(SystemExit) if refused else contextlib.nullcontext():
        load_script(".ci/licenses.py").main()
    assert table.read_text(encoding="utf-8").splitlines()[1] == f"package,1.0,{license_text}"
