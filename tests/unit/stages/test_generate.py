"""Generated text, compared with the logits of the same models; the networks are untrained."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForPreTraining, AutoModelForSequenceClassification

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages import generate
from headstart.stages.generate import GenerateSettings
from headstart.tokens.tokenizer import add_special


def saved(backbone, auto_class, tokenizer, folder, extra=()):
    tokenizer = copy.deepcopy(tokenizer)
    torch.manual_seed(0)
    model = backbone.build(add_special(tokenizer, extra), 64, auto_class).eval()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return model, tokenizer


@pytest.fixture(scope="module")
def decoder(tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    return folder, *saved(Decoder(Decoder.Config(size="tiny")), "AutoModelForCausalLM", tiny_tokenizer, folder)


@pytest.fixture(scope="module")
def t5(tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    backbone = EncoderDecoder(EncoderDecoder.Config(kind="t5", size="tiny"))
    extra = [f"<extra_id_{number}>" for number in range(12)]
    return folder, *saved(backbone, "AutoModelForSeq2SeqLM", tiny_tokenizer, folder, extra)


def test_greedy_search_takes_the_likeliest_token_that_is_not_special(decoder):
    folder, model, tokenizer = decoder
    ids = tokenizer("in the beginning")["input_ids"][:-1]
    forbidden = [token for token in tokenizer.all_special_ids if token != tokenizer.sep_token_id]
    for _ in range(6):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        logits[forbidden] = -torch.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == tokenizer.sep_token_id:
            break
    answers = generate.run(folder, ["in the beginning"], GenerateSettings(max_new_tokens=6))
    assert answers == [{"prompt": "in the beginning", "texts": [tokenizer.decode(ids, skip_special_tokens=True)]}]


def test_the_same_seed_gives_the_same_texts_and_another_seed_others(decoder):
    folder, *_ = decoder
    draw = {"temperature": 1.0, "num_return_sequences": 4, "max_new_tokens": 12}
    first, again, other = (
        generate.run(folder, ["and he said"], GenerateSettings(seed=seed, **draw))[0]["texts"] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) > 1


def test_beam_search_finds_a_text_no_less_likely_than_greedy_search(decoder):
    folder, model, tokenizer = decoder

    def log_probability(text):
        ids = torch.tensor([tokenizer(text)["input_ids"][:-1]])
        with torch.no_grad():
            logs = model(input_ids=ids).logits.log_softmax(-1)
        return logs[0, :-1].gather(1, ids[0, 1:, None]).sum().item()

    greedy, beam = (
        generate.run(folder, ["and"], GenerateSettings(max_new_tokens=5, num_beams=n))[0]["texts"][0] for n in (1, 8)
    )
    assert log_probability(beam) >= log_probability(greedy) - 1e-4


def test_several_texts_without_sampling_are_refused(decoder):
    with pytest.raises(RecipeError, match="num_return_sequences is 3 with 1 beam"):
        generate.run(decoder[0], ["and"], GenerateSettings(num_return_sequences=3))


def test_an_encoder_ranks_candidates(checkpoint):
    folder = checkpoint("bert")
    (answer,) = generate.run(folder, ["in the ___ god ___ the earth"], GenerateSettings(top_k=3))
    assert [len(candidates) for candidates in answer["blanks"]] == [3, 3]
    for candidates in answer["blanks"]:
        probabilities = [candidate["probability"] for candidate in candidates]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) < 1
    assert "blank 2: " in generate.render([answer])
    with pytest.raises(RecipeError, match="no blank"):
        generate.run(folder, ["in the beginning"], GenerateSettings())


def headless(checkpoint, kind, auto_class, folder):
    """Save a network of the same layout with another head, and the same tokenizer."""
    shutil.copytree(checkpoint(kind), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    auto_class.from_config(AutoConfig.from_pretrained(str(folder))).save_pretrained(str(folder))
    return folder


def test_a_missing_language_model_head_is_refused(checkpoint, tmp_path):
    folder = headless(checkpoint, "bert", AutoModelForSequenceClassification, tmp_path / "classifier")
    with pytest.raises(ArtifactError, match=r"BertForSequenceClassification, which has no language-model head"):
        generate.run(folder, ["in the ___"], GenerateSettings())


def test_the_generator_of_an_electra_checkpoint_fills_blanks(checkpoint, tmp_path):
    folder = headless(checkpoint, "electra", AutoModelForPreTraining, tmp_path / "discriminator")
    with pytest.raises(ArtifactError, match="ElectraForPreTraining"):
        generate.run(folder, ["in the ___"], GenerateSettings())
    shutil.copytree(checkpoint("electra"), folder / "generator")
    both, alone = (generate.run(path, ["in the ___"], GenerateSettings()) for path in (folder, checkpoint("electra")))
    assert both == alone


def test_the_output_after_a_sentinel_fills_its_blank(t5):
    _, model, tokenizer = t5
    writer = generate._Writer(model, tokenizer, GenerateSettings(), generate._InputFormat())
    a, b, c, d = (tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("god", "earth", "light", "day"))
    zero, one, two = writer.sentinels[:3]
    written = [tokenizer.pad_token_id, one, *a, *b, zero, *c, tokenizer.sep_token_id, two, *d]
    assert writer._fill([d, b, a], written) == [*d, *c, *b, *a, *b, *a]
    assert writer._fill([d, b], [two, *c]) == [*d, *b], "a blank without output stays empty"


def test_an_encoder_decoder_keeps_the_text_around_its_blanks(t5):
    folder, *_ = t5
    (answer,) = generate.run(folder, ["in the ___ god created ___ earth"], GenerateSettings(max_new_tokens=12))
    (text,) = answer["texts"]
    assert text.startswith("in the ") and "god created" in text and text.endswith("earth")
    assert "extra_id" not in text
    with pytest.raises(RecipeError, match="13 blanks"):
        generate.run(folder, ["___ " * 13], GenerateSettings())
