"""Tasks that write: what is read and learnt, by each layout of both families, and what comes out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Examples, InputSpec
from headstart.core.vocabulary import vocabulary_of
from headstart.tasks.seq2seq import Seq2Seq
from headstart.tasks.source import CheckpointFolder
from headstart.tasks.text_to_text import TextToText
from headstart.tasks.writing import end_of, text_of

DECODERS, BOTH_SIDED = ("gpt2", "llama", "modernbert-decoder"), ("t5", "bart")


@pytest.fixture(scope="module")
def writer(tmp_path_factory, tiny_tokenizers) -> Callable[[str, str], Path]:
    """Gives a folder with a tiny untrained network that writes, and a tokenizer of some kind."""
    known: dict[tuple[str, str], Path] = {}

    def make(kind: str, tokenizer: str = "bpe") -> Path:
        if (kind, tokenizer) not in known:
            torch.manual_seed(0)
            family, auto = (Decoder, "CausalLM") if kind in DECODERS else (EncoderDecoder, "Seq2SeqLM")
            config = family.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 128, "dropout": 0.0})
            model = family(config).build(vocabulary_of(tiny_tokenizers[tokenizer]), 64, f"AutoModelFor{auto}")
            folder = known[kind, tokenizer] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(str(folder))
            tiny_tokenizers[tokenizer].save_pretrained(str(folder))
            own = PreTrainedTokenizerFast.from_pretrained(
                str(folder), model_input_names=["input_ids", "attention_mask"]
            )
            own.save_pretrained(str(folder))
        return known[kind, tokenizer]

    return make


def text_task(**settings) -> TextToText:
    return TextToText(TextToText.Config.model_validate({"gold": "text", "target": "target", **settings}))


def rows(sources, targets) -> Examples:
    return Examples({"text": list(sources)}, list(targets), "d.jsonl")


PAIRS = rows(["In the beginning", "God created the heaven and the earth"], ["God created", "the earth was"])


def opened(path: Path, task) -> tuple[InputSpec, torch.nn.Module]:
    source = CheckpointFolder(path, task, 0)
    model = source.pretrained().eval()
    task.prepare_head(model)
    return source.reading(48), model


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "unigram"])
def test_a_decoder_goes_on_with_the_target_and_learns_it_alone(writer, tokenizer):
    task = text_task()
    reading, _ = opened(writer("llama", tokenizer), task)
    end = end_of(reading.tokenizer)
    asked, trained = task.encode(PAIRS, reading), task.encode(PAIRS, reading, training=True)
    for question, feature, source, target in zip(asked, trained, PAIRS.columns["text"], PAIRS.labels, strict=True):
        before = len(question["input_ids"])
        assert feature["input_ids"][:before] == question["input_ids"], "what is learnt from is what is asked"
        assert (
            feature["labels"][:before] == [-100] * before
            and feature["labels"][before:] == feature["input_ids"][before:]
        )
        assert feature["input_ids"][-1] == end and question["input_ids"][-1] != end
        whole = reading.tokenizer(f"{source} {target}")["input_ids"]
        assert feature["input_ids"] == whole, "the same tokens as running text"
        assert text_of(feature["labels"][before:], reading) == target


def test_an_encoder_decoder_reads_the_source_and_writes_the_target(writer):
    task = text_task()
    reading, _ = opened(writer("t5"), task)
    for feature, source, target in zip(
        task.encode(PAIRS, reading, training=True), PAIRS.columns["text"], PAIRS.labels, strict=True
    ):
        assert feature["input_ids"] == reading.tokenizer(source)["input_ids"]
        assert feature["labels"] == reading.tokenizer(target)["input_ids"] and feature["labels"][-1] == end_of(
            reading.tokenizer
        )


@pytest.mark.parametrize("kind", [*DECODERS, *BOTH_SIDED])
def test_the_loss_is_that_of_transformers(kind, writer):
    task = text_task()
    reading, model = opened(writer(kind), task)
    batch = task.collate(task.encode(PAIRS, reading, training=True), reading)
    with torch.no_grad():
        theirs = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss.item()
        ours = task.loss(model, batch).item() / task.weight(batch)
    assert ours == pytest.approx(theirs, rel=1e-4)
    sides = batch["labels"].numel() if kind in BOTH_SIDED else 0
    assert task.tokens(batch) == batch["input_ids"].numel() + sides


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", [*DECODERS, *BOTH_SIDED])
def test_neighbours_and_padding_do_not_change_what_is_written(kind, num_beams, writer):
    task = text_task(num_beams=num_beams, max_target=12)
    reading, model = opened(writer(kind), task)
    features = task.encode(PAIRS, reading)
    with torch.no_grad():
        together = task.predict(model, task.collate(features, reading))
        alone = [task.predict(model, task.collate([feature], reading))[0] for feature in features]
    assert together == alone and all(len(ids) <= 12 for ids in together)


@pytest.mark.parametrize("kind", [*DECODERS, *BOTH_SIDED])
def test_what_was_learnt_is_written_and_a_plain_model_stops_by_itself(kind, writer, tmp_path):
    """Two rows by heart in a few steps; the saved folder does it again by transformers alone."""
    task = text_task(max_target=12)
    reading, model = opened(writer(kind), task)
    batch = task.collate(task.encode(PAIRS, reading, training=True), reading)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    features = task.encode(PAIRS, reading)
    with torch.no_grad():
        outputs = task.predict(model, task.collate(features, reading))
    assert task.decode(outputs, features, reading) == PAIRS.labels
    model.save_pretrained(str(tmp_path))
    plain = getattr(transformers, task.auto_class(reading.family)).from_pretrained(str(tmp_path))
    ids = torch.tensor([features[0]["input_ids"]])
    (written,) = plain.generate(input_ids=ids, attention_mask=torch.ones_like(ids)).tolist()
    new = written[1:] if kind in BOTH_SIDED else written[ids.shape[1] :]
    assert text_of(new, reading) == PAIRS.labels[0] and len(new) <= 12
    assert plain.generation_config.max_new_tokens == 12


def test_a_cut_target_has_no_end(writer):
    """A model that is told that long texts end early would learn to stop there."""
    task = text_task(max_target=4)
    reading, _ = opened(writer("t5"), task)
    (feature,) = task.encode(rows(["x"], ["God created the heaven and the earth"]), reading, training=True)
    assert len(feature["labels"]) == 4 and end_of(reading.tokenizer) not in feature["labels"]


def test_a_decoder_has_room_for_prompt_and_target(writer):
    task = text_task(max_target=16)
    reading, _ = opened(writer("gpt2"), task)
    long = rows(["heaven and earth " * 40], ["God created the heaven and the earth " * 10])
    (feature,) = task.encode(long, reading, training=True)
    (question,) = task.encode(long, reading)
    assert len(feature["input_ids"]) <= 48 and len(question["input_ids"]) <= 32
    assert sum(label != -100 for label in feature["labels"]) == 16


def test_sources_that_are_cut_are_counted(writer):
    for task, column in ((text_task(), "text"), (Seq2Seq(Seq2Seq.Config()), "source")):
        reading, _ = opened(writer("t5"), task)
        features = task.encode(Examples({column: ["heaven and earth " * 40, "heaven", "x"]}, ["a"] * 3), reading)
        assert task.notes(features) == ["1 of 3 sources are cut at training.max_length."]
        assert task.notes(features[1:]) == []


def test_an_encoder_decoders_target_shares_no_room_with_the_source(writer):
    task = text_task(max_target=40)
    reading, _ = opened(writer("t5"), task)
    features = task.encode(rows(["x", "y"], ["heaven and earth " * 40, "earth"]), reading, training=True)
    assert len(features[0]["labels"]) == 40
    assert task.notes(features) == ["1 of 2 targets are cut at task.max_target."]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_what_a_checkpoint_was_told_of_writing_does_not_count(kind, writer, tmp_path):
    task = text_task(max_target=12)
    reading, plain = opened(writer(kind), task)
    told = shutil.copytree(writer(kind), tmp_path / kind)
    settings = GenerationConfig.from_pretrained(str(told))
    settings.update(repetition_penalty=3.0, min_new_tokens=6, forced_bos_token_id=7)
    settings.save_pretrained(str(told))
    _, model = opened(told, task)
    batch = task.collate(task.encode(PAIRS, reading), reading)
    with torch.no_grad():
        assert task.predict(model, batch) == task.predict(plain, batch)


def test_an_empty_prompt_still_has_a_token(writer):
    task = text_task()
    reading, model = opened(writer("gpt2"), task)
    bare = InputSpec(reading.tokenizer, "decoder", 48)
    (feature,) = task.encode(rows([""], ["x"]), bare)
    assert len(feature["input_ids"]) == 1
    with torch.no_grad():
        assert len(task.predict(model, task.collate([feature], bare))) == 1


def test_beams_find_a_likelier_text_than_greed(writer):
    greedy, beams = (text_task(num_beams=n, max_target=8, length_penalty=0.0) for n in (1, 6))
    reading, model = opened(writer("bart"), greedy)
    features = greedy.encode(PAIRS, reading)
    batch = greedy.collate(features, reading)

    def likelihood(ids, row):
        labels = torch.tensor([ids])
        inputs = {name: batch[name][row : row + 1] for name in ("input_ids", "attention_mask")}
        return -greedy.loss(model, {**inputs, "labels": labels}).item()

    with torch.no_grad():
        for row, (one, other) in enumerate(zip(greedy.predict(model, batch), beams.predict(model, batch), strict=True)):
            if len(one) == len(other) == 8:
                assert likelihood(other, row) >= likelihood(one, row) - 1e-3


def test_seq2seq_is_text_to_text_without_a_template(writer):
    plain = Seq2Seq(Seq2Seq.Config(prefix="copy: "))
    reading, _ = opened(writer("t5"), plain)
    examples = Examples({"source": ["In the beginning"]}, [["God created", "another"]], "d.jsonl")
    cast = text_task(template="copy: {source}")
    for training in (False, True):
        ours, theirs = plain.encode(examples, reading, training), cast.encode(examples, reading, training)
        assert [{k: v for k, v in f.items() if k != "words"} for f in theirs] == ours
    assert plain.metrics() == ("bleu", "rouge1", "rouge2", "rougeL")
    assert Seq2Seq(Seq2Seq.Config(metric="rougeL")).metrics()[0] == "rougeL"
    assert plain.families == ("encoder-decoder",) and plain.columns("test")[1].kind.fits(["a", "b"])
