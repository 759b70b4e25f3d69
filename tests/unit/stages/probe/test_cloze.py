"""Blanks, facts and last words against the logits of the same networks, read without batches."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from headstart.core.errors import DataError
from headstart.stages.probe.blanks import answered_blank, find_blanks, predictions_by_layer, token_text
from headstart.stages.probe.last_words import chance_of_a_word, predicts_last_words
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes.cloze import Cloze
from headstart.stages.probe.settings import ProbeSettings

TEXTS = ["in the ___ god made the earth", "and he said ___", "the king of ___ went up to jerusalem and fought"]


@pytest.fixture(params=["bert", "modernbert", "deberta-v2", "albert", "electra", "decoder"])
def network(request, network_of, checkpoint, decoder_folder):
    return network_of(decoder_folder if request.param == "decoder" else checkpoint(request.param))


def logits_of(network, text):
    """The logits for the blank of a text, by one call of the whole model."""
    tokenizer = network.tokenizer
    with torch.no_grad():
        if network.family == "decoder":
            ids = [tokenizer.bos_token_id, *tokenizer(text.partition("___")[0].rstrip())["input_ids"]]
            return network.model(input_ids=torch.tensor([ids])).logits[0, -1]
        ids = tokenizer(text.replace("___", tokenizer.mask_token), return_tensors="pt")["input_ids"]
        return network.model(input_ids=ids).logits[0, (ids[0] == tokenizer.mask_token_id).nonzero()[0, 0]]


def test_after_the_last_layer_the_lens_shows_the_predictions_of_the_model(network):
    blanks = [blank for text in TEXTS for blank in find_blanks(network, text)]
    layers = {}
    for indices, layer, log_probs in predictions_by_layer(network, blanks):
        for i, row in zip(indices, log_probs, strict=True):
            layers.setdefault(i, {})[layer] = row
    assert sorted(layers) == [0, 1, 2]
    for i, text in enumerate(TEXTS):
        assert sorted(layers[i]) == list(range(network.model.config.num_hidden_layers + 1))
        last = layers[i][network.model.config.num_hidden_layers]
        torch.testing.assert_close(last, logits_of(network, text).log_softmax(-1), atol=1e-4, rtol=0)
        assert not torch.allclose(layers[i][0], last, atol=1e-3)


def test_the_limit_holds_for_texts_of_the_user(tmp_path):
    (tmp_path / "blanks.txt").write_text("".join(f"text {i} ___\n" for i in range(9)), encoding="utf-8")
    probe = Cloze(ProbeSettings(text=str(tmp_path / "blanks.txt"), limit=2))
    assert probe.prepare() is None and len(probe.texts) == 2


@pytest.mark.parametrize("kind", ["opt", "phi"])
def test_the_lens_reads_the_layers_of_any_decoder_through_its_final_norm(kind, network_of, decoder_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(str(decoder_folder))
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"opt": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "phi": {"intermediate_size": 64}}[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **more, max_position_embeddings=64))
    norm = model.base_model.decoder.final_layer_norm if kind == "opt" else model.base_model.final_layernorm
    torch.nn.init.normal_(norm.weight)
    for part in (model, tokenizer):
        part.save_pretrained(str(tmp_path))
    network = network_of(tmp_path)
    (blank,) = find_blanks(network, TEXTS[0])
    found = {layer: row[0] for _, layer, row in predictions_by_layer(network, [blank])}
    with torch.no_grad():
        states = model.eval().base_model(torch.tensor([blank.ids]), output_hidden_states=True).hidden_states
        expected = model.lm_head(norm(states[1]))[0, blank.position].log_softmax(-1)
    torch.testing.assert_close(found[1], expected, atol=1e-4, rtol=0)


def test_the_answer_of_a_fact_is_the_token_that_fills_its_blank(network):
    blank = answered_blank(network, "and he said unto ___ again", "him")
    assert network.tokenizer.decode([blank.answer]).strip() == "him"
    assert answered_blank(network, "and he said unto ___ again", "Nebuchadnezzar the king") is None
    assert answered_blank(network, "two ___ in ___ text", "him") is None


def facts_of(folder, rows):
    columns = ("relation", "pattern", "subject", "object")
    (folder / "probes").mkdir()
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)})
    pa.parquet.write_table(table, str(folder / "probes" / "facts.parquet"))
    pa.parquet.write_table(
        pa.table({"text": ["a b c a", "he went up and he"]}), str(folder / "probes" / "lambada.parquet")
    )


def test_the_rank_of_an_answer_is_its_place_among_all_tokens(network, tmp_path, monkeypatch):
    pattern = "[X] said unto [Y]" if network.family == "decoder" else "[X] said unto [Y] again"
    facts_of(tmp_path, [("r1", pattern, "he", "him"), ("r1", pattern, "she", "him"), ("r1", pattern, "they", "them")])
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    probe = Cloze(ProbeSettings())
    assert probe.prepare() is None
    found = probe.measure(network)
    report = probe.report([Measured("m", network.family, found, found)])
    rows = report.tables["cloze-facts"]
    assert [row["answer"] for row in rows] == ["him", "him", "them"]
    for row in rows:
        logits = logits_of(network, row["text"])
        blank = answered_blank(network, row["text"], row["answer"])
        assert row["rank"] == 1 + int((logits > logits[blank.answer]).sum())
        assert row["probability"] == pytest.approx(float(logits.softmax(-1)[blank.answer]), abs=1e-5)
    score = report.scores[0]
    assert score.baselines["most_frequent"] == pytest.approx(2 / 3), "`him` is the most frequent answer"
    assert [each.measure.partition(",")[0] for each in report.scores] == (
        ["facts", "LAMBADA"] if network.family == "decoder" else ["facts"]
    )


def test_own_texts_are_filled_side_by_side(network_of, encoder_folder, decoder_folder, tmp_path):
    (tmp_path / "blanks.txt").write_text("in the ___ god <b>made</b> ___\n\nand ___\n", encoding="utf-8")
    probe = Cloze(ProbeSettings(text=str(tmp_path / "blanks.txt")))
    assert probe.prepare() is None
    measured = []
    for folder in (encoder_folder, decoder_folder):
        network = network_of(folder)
        found = probe.measure(network)
        measured.append(Measured(network.family, network.family, found, found))
    report = probe.report(measured)
    encoder, decoder = (report.numbers["models"][name]["blanks"] for name in ("encoder", "decoder"))
    assert len(encoder) == 3 and len(decoder) == 2, "a decoder fills the first blank of a text"
    expected = logits_of(network_of(encoder_folder), "and ___").softmax(-1).max()
    assert encoder[2]["candidates"][0][1] == pytest.approx(float(expected), abs=1e-5)
    assert not report.scores


def test_a_text_without_a_blank_is_refused(tmp_path):
    (tmp_path / "blanks.txt").write_text("in the ___\nnothing here\n", encoding="utf-8")
    with pytest.raises(DataError, match="text 2, has no blank"):
        Cloze(ProbeSettings(text=str(tmp_path / "blanks.txt"))).prepare()


def test_a_last_word_counts_if_greedy_decoding_writes_it(network_of, decoder_folder):
    network = network_of(decoder_folder)
    context = "and the lord said unto"
    ids = [network.tokenizer.bos_token_id, *network.encode(context)]
    space = network.encode(" him")[0]
    with torch.no_grad():
        # The head is biased, so that a whole word is the likeliest token.
        network.model.get_output_embeddings().weight[space] += (
            10 * network.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        )
    assert predicts_last_words(network, [f"{context} him", f"{context} Nebuchadnezzar"]) == [1.0, 0.0]


def test_a_random_word_of_a_passage():
    assert chance_of_a_word('He said: "Ann, go." Then he saw Ann') == pytest.approx(1 / 7)
    assert chance_of_a_word("word") == 0.0


def test_white_space_is_shown_by_its_name():
    texts = {0: " ", 1: "\n\n", 2: " the", 3: ""}
    tokenizer = SimpleNamespace(decode=lambda ids: texts[ids[0]], convert_ids_to_tokens=lambda token: f"<{token}>")
    shown = [token_text(SimpleNamespace(tokenizer=tokenizer), token) for token in texts]
    assert shown == ["(space)", "(line break)", "the", "<3>"]
