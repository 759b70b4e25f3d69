"""Prompt and prefix tuning: supported networks, trainable parameters and outputs."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import CLASSIFIER, Headed, count

from headstart.adaptation.prefix import PrefixTuning
from headstart.adaptation.prompt import PromptTuning
from headstart.core.errors import RecipeError

TAGGER, QA, SEQ2SEQ, CAUSAL = (
    "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"
)  # fmt: skip
TOKENS = 5
CASES = [
    (PromptTuning, "bert", CLASSIFIER), (PromptTuning, "roberta", CLASSIFIER), (PromptTuning, "modernbert", CLASSIFIER),
    (PromptTuning, "modernbert", QA), (PromptTuning, "deberta-v2", TAGGER), (PromptTuning, "albert", CLASSIFIER),
    (PromptTuning, "electra", "AutoModel"), (PromptTuning, "gpt2", CAUSAL), (PromptTuning, "llama", "AutoModel"),
    (PromptTuning, "modernbert-decoder", CAUSAL), (PromptTuning, "t5", SEQ2SEQ), (PromptTuning, "bart", SEQ2SEQ),
    (PromptTuning, "xlnet", CLASSIFIER), (PromptTuning, "xlnet", "AutoModel"),
    (PrefixTuning, "bert", CLASSIFIER), (PrefixTuning, "bert", TAGGER), (PrefixTuning, "roberta", CLASSIFIER),
    (PrefixTuning, "electra", QA), (PrefixTuning, "gpt2", CLASSIFIER), (PrefixTuning, "llama", CAUSAL),
    (PrefixTuning, "modernbert-decoder", CLASSIFIER), (PrefixTuning, "t5", SEQ2SEQ), (PrefixTuning, "bart", SEQ2SEQ),
]  # fmt: skip


def method(kind: type, **settings):
    return kind(kind.Config(tokens=TOKENS, **settings))


@pytest.mark.parametrize(("kind", "layout", "head"), CASES)
def test_only_virtual_tokens_and_a_new_head_train(kind, layout, head, pretrained, tmp_path):
    given = pretrained(layout, head)
    adaptation = method(kind)
    assert adaptation.supports(given.source.task, LAYOUTS[layout]) is None and adaptation.supports_kind(layout) is None
    plain = given.source.pretrained()
    fresh = sum(p.numel() for name, p in plain.named_parameters() if name in given.source.new_parameters())
    model = adaptation.adapt(given.source)
    config = model.config
    width = plain.get_input_embeddings().weight.shape[1]
    vectors = width if kind is PromptTuning else 2 * config.hidden_size * config.num_hidden_layers
    assert count(model) == TOKENS * vectors + fresh
    groups = adaptation.groups(model)
    assert groups[0].names == ("prompt_encoder.default.embedding.weight",) and groups[0].lr_scale == 1
    trainable, changed = given.train(model)
    assert changed <= trainable == {name for group in groups for name in group.names}
    assert groups[0].names[0] in changed
    outputs = given.outputs(model)
    assert outputs.shape == given.outputs(plain).shape, "one output for each token of the text, as without a prompt"
    per_token = head == QA or (outputs.ndim == 3 and head != SEQ2SEQ)
    # The second text without its padding gives the same output: it depends on no other text.
    alone = {name: tensor[1:, : 9 if "decoder" not in name else None] for name, tensor in given.batch.items()}
    expected = outputs[1:, :9] if per_token else outputs[1:]
    torch.testing.assert_close(given.outputs(model, **alone), expected, atol=2e-5, rtol=1e-4)
    adaptation.finish(model).save_pretrained(str(tmp_path))
    reopened = adaptation.reopen(given.source, tmp_path)
    torch.testing.assert_close(given.outputs(reopened), outputs, atol=1e-5, rtol=1e-4)
    if kind is PromptTuning and head == CLASSIFIER and layout != "modernbert":
        return  # plain peft reads the first virtual token, Headstart [CLS] of the text
    with_peft = given.outputs(PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path)))
    # Plain peft keeps the outputs of the virtual tokens, before those of the text.
    torch.testing.assert_close(with_peft[:, -outputs.shape[1] :], outputs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", ["bert", "roberta", "albert", "xlnet", "deberta-v2", "electra"])
def test_a_classifier_reads_the_first_position_of_the_text(layout, pretrained, tmp_path):
    """Its output is that of the head on the states of the text, with the virtual tokens cut off."""
    given, adaptation = pretrained(layout, CLASSIFIER), method(PromptTuning)
    model = adaptation.adapt(given.source).eval()
    network = model.get_base_model()
    read = []
    hook = network.base_model.register_forward_hook(lambda _, __, output: read.append(output.last_hidden_state))
    outputs = given.outputs(model)
    hook.remove()
    assert read[0].shape[1] == given.batch["input_ids"].shape[1]
    with torch.no_grad():
        prompts = model.get_prompt(batch_size=2).to(torch.float32)
        embeds = torch.cat([prompts, network.get_input_embeddings()(given.batch["input_ids"])], 1)
        mask = torch.cat([torch.ones(2, TOKENS, dtype=torch.int64), given.batch["attention_mask"]], 1)
        network.base_model._forward_hooks.clear()
        states = network.base_model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(read[0], states[:, TOKENS:], atol=1e-5, rtol=1e-4)
    reopened = saved_and_reopened(adaptation, model, given, tmp_path)
    torch.testing.assert_close(given.outputs(reopened), outputs, atol=1e-5, rtol=1e-4)
    # Without the adapter, nothing is cut off.
    assert reopened.get_base_model().base_model(**given.batch).last_hidden_state.shape[1] == read[0].shape[1]


def saved_and_reopened(adaptation, model, given, folder):
    adaptation.finish(model).save_pretrained(str(folder))
    return adaptation.reopen(given.source, folder)


def test_an_adapter_of_an_earlier_version_keeps_reading_the_first_virtual_token(pretrained, tmp_path):
    given, adaptation = pretrained("bert", CLASSIFIER), method(PromptTuning)
    now = given.outputs(saved_and_reopened(adaptation, adaptation.adapt(given.source), given, tmp_path))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config.pop("auto_mapping")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    before = given.outputs(adaptation.reopen(given.source, tmp_path))
    with_peft = given.outputs(PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path)))
    torch.testing.assert_close(before, with_peft, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(before, now, atol=1e-3)


@pytest.mark.parametrize(("kind", "head", "family", "reason"), [
    (PromptTuning, "AutoModelForMultipleChoice", "encoder", "virtual tokens for AutoModelForMultipleChoice"),
    (PrefixTuning, "AutoModelForMaskedLM", "encoder", "virtual tokens for AutoModelForMaskedLM"),
    (PromptTuning, CLASSIFIER, "decoder", "finds the last token by its id"),
    (PromptTuning, CLASSIFIER, "encoder-decoder", "AutoModelForSeq2SeqLM only"),
    (PrefixTuning, TAGGER, "encoder-decoder", "AutoModelForSeq2SeqLM only"),
    (PrefixTuning, "AutoModel", "bilm", "LSTM"),
])  # fmt: skip
def test_heads_that_peft_does_not_support_are_rejected(kind, head, family, reason):
    assert reason in method(kind).supports(Headed(head, {}), family)


def test_a_prefix_needs_a_network_that_takes_keys_and_values():
    supported = {layout for layout in LAYOUTS if PrefixTuning().supports_kind(layout) is None}
    assert supported == {"bert", "roberta", "electra", "gpt2", "llama", "modernbert-decoder", "t5", "bart"}
    assert {PromptTuning().supports_kind(layout) for layout in LAYOUTS} == {None}


@pytest.mark.parametrize("kind", [PromptTuning, PrefixTuning])
@pytest.mark.parametrize("layout", ["bert", "roberta", "gpt2", "bart", "llama"])
def test_texts_beyond_the_positions_are_rejected(kind, layout, pretrained):
    head = SEQ2SEQ if layout == "bart" else CAUSAL if LAYOUTS[layout] == "decoder" else CLASSIFIER
    given = pretrained(layout, head)
    adaptation = method(kind)
    model = adaptation.adapt(given.source)
    positions = given.source.pretrained().config.max_position_embeddings
    if layout == "roberta":
        positions -= 1  # its first position is for padding
    if layout == "llama":
        positions = None  # its positions are computed, without a maximum
    longest = 1000 if positions is None else positions - TOKENS
    fits, too_long = (
        {"input_ids": torch.full((2, length), 7), "attention_mask": torch.ones(2, length)}
        for length in (longest, longest + 1)
    )
    assert adaptation.extend(fits, []) is fits and given.outputs(model, **fits).isfinite().all()
    if positions is not None:
        with pytest.raises(RecipeError, match=f"{longest + 1} tokens and 5 virtual tokens .* {positions} positions"):
            adaptation.extend(too_long, [])
    if layout in ("bert", "roberta", "gpt2"):
        with pytest.raises((IndexError, RuntimeError)):
            given.outputs(model, **too_long)


def test_a_new_head_has_a_lower_rate_than_the_virtual_tokens(pretrained):
    model = method(PromptTuning, learning_rate=0.05).adapt(pretrained("bert").source)
    virtual, head = method(PromptTuning, learning_rate=0.05).groups(model)
    assert (virtual.lr_scale, head.lr_scale) == (1, pytest.approx(0.2))
    assert method(PromptTuning, learning_rate=None).groups(model)[1].lr_scale == 1
    assert method(PromptTuning, learning_rate=1e-4).groups(model)[1].lr_scale == 1


def test_a_prompt_starts_from_random_tokens_or_from_a_text(given_of):
    source = given_of("bert").source
    table = source.pretrained().get_input_embeddings().weight
    drawn = method(PromptTuning).adapt(source).prompt_encoder["default"].embedding.weight
    assert all((table == row).all(1).any() for row in drawn)
    assert torch.equal(drawn, method(PromptTuning).adapt(source).prompt_encoder["default"].embedding.weight)
    from_text = method(PromptTuning, text="in the beginning").adapt(source).prompt_encoder["default"].embedding.weight
    ids = source.tokenizer()("in the beginning")["input_ids"]
    assert torch.equal(from_text, table[torch.tensor((ids * TOKENS)[:TOKENS])])


def test_a_prompt_has_the_width_of_narrow_embeddings(network, tmp_path, pretrained):
    network("albert", "AutoModelForMaskedLM", embedding_size=24).save_pretrained(str(tmp_path))
    given = type(pretrained("albert"))(tmp_path)
    model = method(PromptTuning).adapt(given.source)
    assert model.prompt_encoder["default"].embedding.weight.shape == (TOKENS, 24)
    assert given.outputs(model).shape == (2, 3)


def test_a_projected_prefix_is_saved_after_projection(pretrained, tmp_path):
    given = pretrained("bert")
    adaptation = method(PrefixTuning, projection=16)
    model = adaptation.adapt(given.source)
    assert {name.split(".")[2] for name in given.train(model)[1] if "prompt_encoder" in name} == {
        "embedding",
        "transform",
    }
    model.save_pretrained(str(tmp_path))
    again = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path))
    torch.testing.assert_close(given.outputs(again), given.outputs(model), atol=1e-5, rtol=1e-4)


def test_a_prefix_fits_other_key_widths_and_decoder_depths(network, tmp_path, pretrained):
    network("t5", SEQ2SEQ, d_kv=24, num_decoder_layers=1).save_pretrained(str(tmp_path))
    given = type(pretrained("t5"))(tmp_path, SEQ2SEQ)
    assert given.train(method(PrefixTuning).adapt(given.source))[1]


@pytest.mark.parametrize(
    ("kind", "layout"), [(PromptTuning, "gpt2"), (PrefixTuning, "gpt2"), (PromptTuning, "t5"), (PrefixTuning, "bart")]
)
def test_generation_uses_the_virtual_tokens(kind, layout, pretrained):
    given = pretrained(layout, CAUSAL if LAYOUTS[layout] == "decoder" else SEQ2SEQ)
    model = method(kind).adapt(given.source).eval()
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.mul_(30)
        inputs = {"input_ids": given.batch["input_ids"][:1], "attention_mask": given.batch["attention_mask"][:1]}
        generated = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        # The same token by token, with the forward pass of training.
        is_decoder = LAYOUTS[layout] == "decoder"
        ids = inputs["input_ids"] if is_decoder else torch.full((1, 1), model.config.decoder_start_token_id)
        for _ in range(6):
            own = (
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if is_decoder else {"decoder_input_ids": ids}
            )
            logits = model(**{**inputs, **own}).logits[:, -1]
            logits[:, model.config.eos_token_id] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    assert generated[0, -6:].tolist() == ids[0, -6:].tolist()
