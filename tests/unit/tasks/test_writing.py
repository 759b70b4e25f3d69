"""Tasks that generate text: encoding, loss and generation, for each layout of both families."""

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

DECODERS, ENCODER_DECODERS = ("gpt2", "llama", "modernbert-decoder"), ("t5", "bart")


@pytest.fixture(scope="module")
def generator_folder(tmp_path_factory, tiny_tokenizers) -> Callable[[str, str], Path]:
    """Makes a folder with a tiny untrained network that generates text, and a tokenizer of a kind."""
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
    return source.input_spec(48), model


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "unigram"])
def test_a_decoder_continues_the_source_with_the_target_and_trains_on_the_target_only(generator_folder, tokenizer):
    task = text_task()
    spec, _ = opened(generator_folder("llama", tokenizer), task)
    end = end_of(spec.tokenizer)
    prompts, trained = task.encode(PAIRS, spec), task.encode(PAIRS, spec, training=True)
    for prompt, feature, source, target in zip(prompts, trained, PAIRS.columns["text"], PAIRS.labels, strict=True):
        before = len(prompt["input_ids"])
        assert feature["input_ids"][:before] == prompt["input_ids"], "training and generation read the same source"
        assert (
            feature["labels"][:before] == [-100] * before
            and feature["labels"][before:] == feature["input_ids"][before:]
        )
        assert feature["input_ids"][-1] == end and prompt["input_ids"][-1] != end
        whole = spec.tokenizer(f"{source} {target}")["input_ids"]
        assert feature["input_ids"] == whole, "the same tokens as running text"
        assert text_of(feature["labels"][before:], spec) == target


def test_an_encoder_decoder_reads_the_source_and_generates_the_target(generator_folder):
    task = text_task()
    spec, _ = opened(generator_folder("t5"), task)
    for feature, source, target in zip(
        task.encode(PAIRS, spec, training=True), PAIRS.columns["text"], PAIRS.labels, strict=True
    ):
        assert feature["input_ids"] == spec.tokenizer(source)["input_ids"]
        assert feature["labels"] == spec.tokenizer(target)["input_ids"] and feature["labels"][-1] == end_of(
            spec.tokenizer
        )


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODER_DECODERS])
def test_the_loss_is_that_of_transformers(kind, generator_folder):
    task = text_task()
    spec, model = opened(generator_folder(kind), task)
    batch = task.collate(task.encode(PAIRS, spec, training=True), spec)
    with torch.no_grad():
        expected = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss.item()
        loss = task.loss(model, batch).item() / task.weight(batch)
    assert loss == pytest.approx(expected, rel=1e-4)
    decoder_tokens = batch["labels"].numel() if kind in ENCODER_DECODERS else 0
    assert task.tokens(batch) == batch["input_ids"].numel() + decoder_tokens


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", [*DECODERS, *ENCODER_DECODERS])
def test_generation_does_not_depend_on_the_batch(kind, num_beams, generator_folder):
    task = text_task(num_beams=num_beams, max_target=12)
    spec, model = opened(generator_folder(kind), task)
    features = task.encode(PAIRS, spec)
    with torch.no_grad():
        together = task.predict(model, task.collate(features, spec))
        alone = [task.predict(model, task.collate([feature], spec))[0] for feature in features]
    assert together == alone and all(len(ids) <= 12 for ids in together)


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODER_DECODERS])
def test_a_trained_model_generates_its_targets_and_so_does_the_saved_one(kind, generator_folder, tmp_path):
    """The model overfits two rows in a few steps; transformers alone generates the same from the saved folder."""
    task = text_task(max_target=12)
    spec, model = opened(generator_folder(kind), task)
    batch = task.collate(task.encode(PAIRS, spec, training=True), spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    features = task.encode(PAIRS, spec)
    with torch.no_grad():
        outputs = task.predict(model, task.collate(features, spec))
    assert task.decode(outputs, features, spec) == PAIRS.labels
    model.save_pretrained(str(tmp_path))
    plain = getattr(transformers, task.auto_class(spec.family)).from_pretrained(str(tmp_path))
    ids = torch.tensor([features[0]["input_ids"]])
    (generated,) = plain.generate(input_ids=ids, attention_mask=torch.ones_like(ids)).tolist()
    new = generated[1:] if kind in ENCODER_DECODERS else generated[ids.shape[1] :]
    assert text_of(new, spec) == PAIRS.labels[0] and len(new) <= 12
    assert plain.generation_config.max_new_tokens == 12


def test_a_truncated_target_has_no_end_token(generator_folder):
    """With an end token there, the model would learn to stop early."""
    task = text_task(max_target=4)
    spec, _ = opened(generator_folder("t5"), task)
    (feature,) = task.encode(rows(["x"], ["God created the heaven and the earth"]), spec, training=True)
    assert len(feature["labels"]) == 4 and end_of(spec.tokenizer) not in feature["labels"]


def test_source_and_target_share_a_decoders_max_length(generator_folder):
    task = text_task(max_target=16)
    spec, _ = opened(generator_folder("gpt2"), task)
    long = rows(["heaven and earth " * 40], ["God created the heaven and the earth " * 10])
    (feature,) = task.encode(long, spec, training=True)
    (prompt,) = task.encode(long, spec)
    assert len(feature["input_ids"]) <= 48 and len(prompt["input_ids"]) <= 32
    assert sum(label != -100 for label in feature["labels"]) == 16


def test_truncated_sources_are_counted(generator_folder):
    for task, column in ((text_task(), "text"), (Seq2Seq(Seq2Seq.Config()), "source")):
        spec, _ = opened(generator_folder("t5"), task)
        features = task.encode(Examples({column: ["heaven and earth " * 40, "heaven", "x"]}, ["a"] * 3), spec)
        assert task.notes(features) == ["1 of 3 sources are truncated to training.max_length."]
        assert task.notes(features[1:]) == []


def test_an_encoder_decoders_target_has_its_own_length_limit(generator_folder):
    task = text_task(max_target=40)
    spec, _ = opened(generator_folder("t5"), task)
    features = task.encode(rows(["x", "y"], ["heaven and earth " * 40, "earth"]), spec, training=True)
    assert len(features[0]["labels"]) == 40
    assert task.notes(features) == ["1 of 2 targets are truncated to task.max_target."]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_checkpoints_generation_config_is_ignored(kind, generator_folder, tmp_path):
    task = text_task(max_target=12)
    spec, plain = opened(generator_folder(kind), task)
    folder = shutil.copytree(generator_folder(kind), tmp_path / kind)
    settings = GenerationConfig.from_pretrained(str(folder))
    settings.update(repetition_penalty=3.0, min_new_tokens=6, forced_bos_token_id=7)
    settings.save_pretrained(str(folder))
    _, model = opened(folder, task)
    batch = task.collate(task.encode(PAIRS, spec), spec)
    with torch.no_grad():
        assert task.predict(model, batch) == task.predict(plain, batch)


def test_an_empty_source_gets_a_token(generator_folder):
    task = text_task()
    spec, model = opened(generator_folder("gpt2"), task)
    (feature,) = task.encode(rows([""], ["x"]), spec)
    assert len(feature["input_ids"]) == 1
    with torch.no_grad():
        assert len(task.predict(model, task.collate([feature], spec))) == 1


def test_beam_search_finds_a_more_likely_text_than_greedy_decoding(generator_folder):
    greedy, beams = (text_task(num_beams=n, max_target=8, length_penalty=0.0) for n in (1, 6))
    spec, model = opened(generator_folder("bart"), greedy)
    features = greedy.encode(PAIRS, spec)
    batch = greedy.collate(features, spec)

    def likelihood(ids, row):
        labels = torch.tensor([ids])
        inputs = {name: batch[name][row : row + 1] for name in ("input_ids", "attention_mask")}
        return -greedy.loss(model, {**inputs, "labels": labels}).item()

    with torch.no_grad():
        for row, (one, other) in enumerate(zip(greedy.predict(model, batch), beams.predict(model, batch), strict=True)):
            if len(one) == len(other) == 8:
                assert likelihood(other, row) >= likelihood(one, row) - 1e-3


def test_seq2seq_is_text_to_text_without_a_template(generator_folder):
    plain = Seq2Seq(Seq2Seq.Config(prefix="copy: "))
    spec, _ = opened(generator_folder("t5"), plain)
    examples = Examples({"source": ["In the beginning"]}, [["God created", "another"]], "d.jsonl")
    cast = text_task(template="copy: {source}")
    for training in (False, True):
        expected = cast.encode(examples, spec, training)
        assert plain.encode(examples, spec, training) == [
            {k: v for k, v in f.items() if k != "words"} for f in expected
        ]
    assert plain.metrics() == ("bleu", "rouge1", "rouge2", "rougeL")
    assert Seq2Seq(Seq2Seq.Config(metric="rougeL")).metrics()[0] == "rougeL"
    assert plain.families == ("encoder-decoder",) and plain.columns("test")[1].kind.fits(["a", "b"])
