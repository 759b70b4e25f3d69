"""The checkpoint that an adapter records: its name and commit on the Hub, or its folder."""

from __future__ import annotations

from types import SimpleNamespace

from headstart.stages.finetune.base_model import record_base


def recorded(name, folder):
    config = SimpleNamespace(base_model_name_or_path=None, revision=None)
    record_base(SimpleNamespace(peft_config={"default": config}), name, folder)
    return config.base_model_name_or_path, config.revision


def test_a_name_on_the_hub_is_recorded_with_its_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commit = "0123456789" * 4
    assert recorded(f"org/name@{commit}", tmp_path / "cache") == ("org/name", commit)


def test_a_folder_is_recorded_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert recorded("model", tmp_path / "model") == (str(tmp_path / "model"), None)
