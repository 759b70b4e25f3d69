"""Prompts and prefixes: which networks take them, and that a text is read as before behind them."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import CLASSIFIER, Headed, count

from headstart.adaptation.prefix import Prefix
from headstart.adaptation.prompt import Prompt
from headstart.core.errors import RecipeError

TAGGER, READER, WRITER, SPEAKER = (
    "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"
)  # fmt: skip
TOKENS = 5
CASES = [
    (Prompt, "bert", CLASSIFIER), (Prompt, "roberta", CLASSIFIER), (Prompt, "modernbert", CLASSIFIER),
    (Prompt, "modernbert", READER), (Prompt, "deberta-v2", TAGGER), (Prompt, "albert", CLASSIFIER),
    (Prompt, "electra", "AutoModel"), (Prompt, "gpt2", SPEAKER), (Prompt, "llama", "AutoModel"),
    (Prompt, "modernbert-decoder", SPEAKER), (Prompt, "t5", WRITER), (Prompt, "bart", WRITER),
    (Prompt, "xlnet", CLASSIFIER), (Prompt, "xlnet", "AutoModel"),
    (Prefix, "bert", CLASSIFIER), (Prefix, "bert", TAGGER), (Prefix, "roberta", CLASSIFIER),
    (Prefix, "electra", READER), (Prefix, "gpt2", CLASSIFIER), (Prefix, "llama", SPEAKER),
    (Prefix, "modernbert-decoder", CLASSIFIER), (Prefix, "t5", WRITER), (Prefix, "bart", WRITER),
]  # fmt: skip


def method(kind: type, **settings):
    return kind(kind.Config(tokens=TOKENS, **settings))


@pytest.mark.parametrize(("kind", "layout", "head"), CASES)
def test_only_virtual_tokens_and_a_new_head_move_and_texts_keep_to_themselves(kind, layout, head, pretrained, tmp_path):
    given = pretrained(layout, head)
    adaptation = method(kind)
    assert adaptation.supports(given.source.task, LAYOUTS[layout]) is None and adaptation.supports_kind(layout) is None
    plain = given.source.pretrained()
    fresh = sum(p.numel() for name, p in plain.named_parameters() if name in given.source.new_parameters())
    model = adaptation.adapt(given.source)
    config = model.config
    width = plain.get_input_embeddings().weight.shape[1]
    vectors = width if kind is Prompt else 2 * config.hidden_size * config.num_hidden_layers
    assert count(model) == TOKENS * vectors + fresh
    groups = adaptation.groups(model)
    assert groups[0].names == ("prompt_encoder.default.embedding.weight",) and groups[0].lr_scale == 1
    could, did = given.train(model)
    assert did <= could == {name for group in groups for name in group.names} and groups[0].names[0] in did
    said = given.outputs(model)
    assert said.shape == given.outputs(plain).shape, "one output for each token of the text, as without a prompt"
    alone = {name: tensor[1:, : 9 if "decoder" not in name else None] for name, tensor in given.batch.items()}
    there = said[1:, :9] if said.ndim == 3 and head != WRITER else said[1:] if head != READER else said[1:, :9]
    torch.testing.assert_close(given.outputs(model, **alone), there, atol=2e-5, rtol=1e-4)
    adaptation.finish(model).save_pretrained(str(tmp_path))
    torch.testing.assert_close(given.outputs(adaptation.reopen(given.source, tmp_path)), said, atol=1e-5, rtol=1e-4)
    theirs = given.outputs(PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path)))
    length = said.shape[1] if theirs.shape != said.shape else theirs.shape[1]
    torch.testing.assert_close(theirs[:, -length:], said, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "head", "family", "reason"), [
    (Prompt, "AutoModelForMultipleChoice", "encoder", "no virtual tokens for AutoModelForMultipleChoice"),
    (Prefix, "AutoModelForMaskedLM", "encoder", "no virtual tokens for AutoModelForMaskedLM"),
    (Prompt, CLASSIFIER, "decoder", "reads padding"),
    (Prompt, CLASSIFIER, "encoder-decoder", "AutoModelForSeq2SeqLM alone"),
    (Prefix, TAGGER, "encoder-decoder", "AutoModelForSeq2SeqLM alone"),
    (Prefix, "AutoModel", "bilm", "LSTM"),
])  # fmt: skip
def test_what_peft_cannot_do_is_refused(kind, head, family, reason):
    assert reason in method(kind).supports(Headed(head, {}), family)


def test_a_prefix_needs_a_network_that_takes_keys_and_values():
    taken = {layout for layout in LAYOUTS if Prefix().supports_kind(layout) is None}
    assert taken == {"bert", "roberta", "electra", "gpt2", "llama", "modernbert-decoder", "t5", "bart"}
    assert {Prompt().supports_kind(layout) for layout in LAYOUTS} == {None}


@pytest.mark.parametrize("kind", [Prompt, Prefix])
@pytest.mark.parametrize("layout", ["bert", "roberta", "gpt2", "bart", "llama"])
def test_texts_that_leave_no_room_are_refused(kind, layout, pretrained):
    head = WRITER if layout == "bart" else SPEAKER if LAYOUTS[layout] == "decoder" else CLASSIFIER
    given = pretrained(layout, head)
    adaptation = method(kind)
    model = adaptation.adapt(given.source)
    positions = given.source.pretrained().config.max_position_embeddings
    if layout == "roberta":
        positions -= 1  # its first position is the padding's
    if layout == "llama":
        positions = None  # they are worked out, and there is no last one
    longest = 1000 if positions is None else positions - TOKENS
    fits, too_long = (
        {"input_ids": torch.full((2, length), 7), "attention_mask": torch.ones(2, length)}
        for length in (longest, longest + 1)
    )
    assert adaptation.extend(fits, []) is fits and given.outputs(model, **fits).isfinite().all()
    if positions is not None:
        with pytest.raises(RecipeError, match=f"{longest + 1} tokens and 5 virtual ones .* {positions} positions"):
            adaptation.extend(too_long, [])
    if layout in ("bert", "roberta", "gpt2"):
        with pytest.raises((IndexError, RuntimeError)):
            given.outputs(model, **too_long)


def test_a_new_head_is_spared_the_virtual_tokens_rate(pretrained):
    model = method(Prompt, learning_rate=0.05).adapt(pretrained("bert").source)
    virtual, head = method(Prompt, learning_rate=0.05).groups(model)
    assert (virtual.lr_scale, head.lr_scale) == (1, pytest.approx(0.2))
    assert method(Prompt, learning_rate=None).groups(model)[1].lr_scale == 1
    assert method(Prompt, learning_rate=1e-4).groups(model)[1].lr_scale == 1


def test_a_prompt_starts_from_tokens_by_the_seed_or_from_a_text(given_of):
    source = given_of("bert").source
    table = source.pretrained().get_input_embeddings().weight
    drawn = method(Prompt).adapt(source).prompt_encoder["default"].embedding.weight
    assert all((table == row).all(1).any() for row in drawn)
    assert torch.equal(drawn, method(Prompt).adapt(source).prompt_encoder["default"].embedding.weight)
    told = method(Prompt, text="in the beginning").adapt(source).prompt_encoder["default"].embedding.weight
    ids = source.tokenizer()("in the beginning")["input_ids"]
    assert torch.equal(told, table[torch.tensor((ids * TOKENS)[:TOKENS])])


def test_a_prompt_is_as_wide_as_narrow_embeddings(network, tmp_path, pretrained):
    network("albert", "AutoModelForMaskedLM", embedding_size=24).save_pretrained(str(tmp_path))
    given = type(pretrained("albert"))(tmp_path)
    model = method(Prompt).adapt(given.source)
    assert model.prompt_encoder["default"].embedding.weight.shape == (TOKENS, 24)
    assert given.outputs(model).shape == (2, 3)


def test_a_projected_prefix_is_saved_as_the_prefix_that_it_makes(pretrained, tmp_path):
    given = pretrained("bert")
    adaptation = method(Prefix, projection=16)
    model = adaptation.adapt(given.source)
    assert {name.split(".")[2] for name in given.train(model)[1] if "prompt_encoder" in name} == {
        "embedding",
        "transform",
    }
    model.save_pretrained(str(tmp_path))
    again = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path))
    torch.testing.assert_close(given.outputs(again), given.outputs(model), atol=1e-5, rtol=1e-4)


def test_keys_of_a_width_of_their_own_and_an_uneven_decoder_are_met(network, tmp_path, pretrained):
    network("t5", WRITER, d_kv=24, num_decoder_layers=1).save_pretrained(str(tmp_path))
    given = type(pretrained("t5"))(tmp_path, WRITER)
    assert given.train(method(Prefix).adapt(given.source))[1]


@pytest.mark.parametrize(("kind", "layout"), [(Prompt, "gpt2"), (Prefix, "gpt2"), (Prompt, "t5"), (Prefix, "bart")])
def test_what_is_written_follows_the_virtual_tokens(kind, layout, pretrained):
    given = pretrained(layout, SPEAKER if LAYOUTS[layout] == "decoder" else WRITER)
    model = method(kind).adapt(given.source).eval()
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.mul_(30)
        inputs = {"input_ids": given.batch["input_ids"][:1], "attention_mask": given.batch["attention_mask"][:1]}
        ours = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        # The same, token by token, by the forward pass that is trained.
        decodes = LAYOUTS[layout] == "decoder"
        ids = inputs["input_ids"] if decodes else torch.full((1, 1), model.config.decoder_start_token_id)
        for _ in range(6):
            read = {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if decodes else {"decoder_input_ids": ids}
            logits = model(**{**inputs, **read}).logits[:, -1]
            logits[:, model.config.eos_token_id] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    assert ours[0, -6:].tolist() == ids[0, -6:].tolist()
