"""A run shows itself: lines without a terminal, curves on disk that survive a resume."""

from __future__ import annotations

import io
import json

import pytest

from headstart.training.progress import Bar, JsonLines, TensorBoard, read_curve


def values(share: float, loss: float = 1.5) -> dict[str, float]:
    return {"loss": loss, "share": share, "tokens_per_second": 1234.0}


def test_without_a_terminal_plain_lines_are_printed(capsys):
    bar = Bar("pretrain", interval=0.0)
    bar.log(10, values(0.25))
    bar.log(10, {"validation/accuracy": 0.5})
    bar.log(20, values(0.5))
    bar.close()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 2 and "\x1b" not in err
    assert lines[0].startswith("pretrain  25% step 10 · loss 1.500 · 1,234 tokens/s")
    assert "accuracy 0.500" in lines[1] and "left" in lines[1]


def test_lines_are_spaced_but_the_last_one_always_comes(capsys):
    bar = Bar("pretrain", interval=3600.0)
    for step in range(1, 11):
        bar.log(step, values(step / 10))
    assert [line.split()[3] for line in capsys.readouterr().err.splitlines()] == ["10"]


def test_quiet_is_silent(capsys):
    bar = Bar("pretrain", quiet=True, interval=0.0)
    bar.log(1, values(1.0))
    bar.close()
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_there_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar("pretrain")
    bar.log(10, values(0.5))
    bar.close()
    assert "pretrain" in screen.getvalue() and "loss 1.500" in screen.getvalue()


@pytest.fixture
def curve(tmp_path):
    path = tmp_path / "logs" / "metrics.jsonl"
    lines = JsonLines(path, 0)
    for step in range(1, 6):
        lines.log(step, {"loss": 1 / step})
        lines.log(step, {"validation/score": step})
    lines.close()
    return path


def test_each_measurement_is_a_line(curve):
    assert len(read_curve(curve)) == 10
    assert json.loads(curve.read_text().splitlines()[2]) == {"step": 2, "loss": 0.5}


def test_a_resumed_curve_has_no_step_twice(curve):
    lines = JsonLines(curve, 3)
    assert [line["step"] for line in read_curve(curve)] == [1, 1, 2, 2, 3, 3]
    lines.log(4, {"loss": 9.0})
    lines.close()
    assert read_curve(curve)[-1] == {"step": 4, "loss": 9.0}
    assert [p.name for p in curve.parent.iterdir()] == ["metrics.jsonl"]


def test_a_new_run_starts_a_new_curve(curve):
    JsonLines(curve, 0).close()
    assert curve.read_text() == ""


def test_a_torn_last_line_is_left_out(curve):
    curve.write_text(curve.read_text()[:-5])
    assert len(read_curve(curve)) == 9
    assert read_curve(curve.with_name("none.jsonl")) == []


def test_each_line_is_on_disk_at_once(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl", 0)
    lines.log(1, {"loss": 2.0})
    assert read_curve(tmp_path / "m.jsonl") == [{"step": 1, "loss": 2.0}]
    lines.close()


def test_tensorboard_gets_scalars_by_name(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path, 0)
    board.log(3, {"loss": 0.5, "validation/accuracy": 0.25})
    board.close()
    found = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "validation/accuracy"}
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(3, 0.5)]
