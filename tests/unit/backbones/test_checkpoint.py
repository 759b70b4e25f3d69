"""The checkpoint backbone: loaded weights, new tokens and additional networks from subfolders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig

from headstart.backbones.checkpoint import Checkpoint
from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder import Encoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError, RecipeError

HEADS = {Encoder: "AutoModelForMaskedLM", Decoder: "AutoModelForCausalLM", EncoderDecoder: "AutoModelForSeq2SeqLM"}
LAYOUTS = [
    *[(Encoder, kind) for kind in ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")],
    *[(Decoder, kind) for kind in ("gpt2", "llama", "modernbert-decoder")],
    *[(EncoderDecoder, kind) for kind in ("t5", "bart")],
]
OLD = 120
PIECES = {OLD: [7, 9], OLD + 1: [30, 31, 32], OLD + 2: [50, 51]}


def vocabulary(size: int = OLD, pieces=None) -> Vocabulary:
    special = np.arange(size) < 5
    return Vocabulary(size, 0, 2, 3, 4, special=special, starts_word=~special, pieces=pieces or {})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that saves a tiny network of a layout, with random biases and norms."""
    known = {}

    def make(family, kind):
        if (family, kind) not in known:
            torch.manual_seed(0)
            config = family.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 64})
            model = family(config).build(vocabulary(), 32, HEADS[family])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.02 * torch.randn_like(parameter))
            folder = known[family, kind] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(str(folder))
        return known[family, kind]

    return make


def inputs(family) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, OLD, (2, 16), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "decoder_input_ids": ids} if family is EncoderDecoder else {"input_ids": ids}


def backbone(path, **settings) -> Checkpoint:
    return Checkpoint(Checkpoint.Config.model_validate({"path": str(path), **settings}))


@pytest.mark.parametrize(("family", "kind"), LAYOUTS, ids=lambda value: getattr(value, "__name__", value))
def test_new_embeddings_are_means_and_old_logits_are_unchanged(saved, family, kind):
    path = saved(family, kind)
    plain = getattr(transformers, HEADS[family]).from_pretrained(str(path)).eval()
    same = backbone(path).build(vocabulary(), 32, HEADS[family]).eval()
    wide = backbone(path).build(vocabulary(OLD + 4, PIECES), 32, HEADS[family]).eval()
    with torch.no_grad():
        expected, again, actual = (model(**inputs(family)).logits for model in (plain, same, wide))
    assert torch.equal(again, expected)
    assert actual.shape[-1] == OLD + 4 == wide.config.vocab_size
    assert torch.allclose(actual[..., :OLD], expected, atol=1e-6)
    tables = [wide.get_input_embeddings().weight, wide.get_output_embeddings().weight]
    bias = getattr(wide.get_output_embeddings(), "bias", None)
    for table in [*tables, *([] if bias is None else [bias])]:
        for token, written in PIECES.items():
            assert torch.equal(table[token], table[written].mean(0))
    # The logit of a token is the mean of its pieces' logits, because the output layer is linear.
    for token, written in PIECES.items():
        assert torch.allclose(actual[..., token], expected[..., written].mean(-1), atol=1e-5)


def test_spare_embeddings_are_used_for_new_tokens(saved):
    """Published checkpoints round up their vocabulary size; new tokens use the spare rows without resizing."""
    spare = backbone(saved(Encoder, "bert")).build(vocabulary(OLD, {OLD - 1: [10, 11]}), 32, "AutoModelForMaskedLM")
    table = spare.get_input_embeddings().weight
    assert len(table) == OLD and torch.equal(table[OLD - 1], table[[10, 11]].mean(0))


def test_checkpoint_has_the_new_size_and_loads(saved, tmp_path):
    wide = backbone(saved(Encoder, "modernbert")).build(vocabulary(OLD + 3, PIECES), 32, "AutoModelForMaskedLM").eval()
    wide.save_pretrained(str(tmp_path))
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(str(tmp_path)).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**inputs(Encoder)).logits, wide(**inputs(Encoder)).logits)


def test_another_head_is_new_on_the_loaded_body(saved):
    path = saved(Encoder, "bert")
    torch.manual_seed(3)
    model = backbone(path).build(vocabulary(), 32, "AutoModelForTokenClassification", num_labels=1)
    plain = transformers.AutoModel.from_pretrained(str(path))
    for name, value in model.base_model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    assert model.classifier.out_features == 1


def test_additional_network_is_loaded_from_its_subfolder_or_new(saved, tmp_path):
    path = saved(Encoder, "electra")
    transformers.AutoModelForMaskedLM.from_pretrained(str(path)).save_pretrained(str(tmp_path))
    small = Encoder(Encoder.Config(kind="electra", size="tiny", max_length=64)).build(
        vocabulary(), 32, "AutoModelForMaskedLM", 0.5
    )
    owner = backbone(tmp_path)
    new = owner.companion("generator").build(vocabulary(), 32, "AutoModelForMaskedLM", 0.5, num_hidden_layers=1)
    assert (new.config.hidden_size, new.config.num_attention_heads, new.config.num_hidden_layers) == (64, 1, 1)
    assert new.config.intermediate_size == 256
    small.save_pretrained(str(tmp_path / "generator"))
    actual = owner.companion("generator").build(vocabulary(), 32, "AutoModelForMaskedLM", 0.25)
    for name, value in small.state_dict().items():
        assert torch.equal(actual.state_dict()[name], value)


@pytest.mark.parametrize(
    ("family", "kind", "longest"), [(Encoder, "bert", 64), (Encoder, "roberta", 64), (EncoderDecoder, "t5", None)]
)
def test_too_long_rows_raise(saved, family, kind, longest):
    one = backbone(saved(family, kind))
    assert one.max_length() == longest
    one.build(vocabulary(), longest or 9999, HEADS[family])
    if longest:
        with pytest.raises(RecipeError, match=rf"seq_length` is {longest + 1}, but .* reads at most {longest} tokens"):
            one.build(vocabulary(), longest + 1, HEADS[family])


def test_checkpoint_that_cannot_be_loaded_raises(saved, tmp_path):
    with pytest.raises(RecipeError, match=r"backbone\.path` is missing"):
        Checkpoint(Checkpoint.Config()).build(vocabulary(), 32, "AutoModelForMaskedLM")
    with pytest.raises(ArtifactError, match=r"has no config\.json"):
        backbone(tmp_path).build(vocabulary(), 32, "AutoModelForMaskedLM")
    AutoConfig.from_pretrained(str(saved(Encoder, "bert"))).save_pretrained(str(tmp_path))
    with pytest.raises(ArtifactError, match="cannot be loaded as AutoModelForMaskedLM"):
        backbone(tmp_path).build(vocabulary(), 32, "AutoModelForMaskedLM")


@pytest.mark.parametrize(("family", "kind"), LAYOUTS)
def test_a_head_that_the_checkpoint_lacks_is_announced(saved, tmp_path, caplog, family, kind):
    whole = saved(family, kind)
    with caplog.at_level("WARNING", logger="headstart"):
        Checkpoint(Checkpoint.Config(path=whole)).build(vocabulary(), 32, HEADS[family])
    assert not [record for record in caplog.records if record.name == "headstart"], "the head is in the checkpoint"
    body = transformers.AutoModel.from_pretrained(whole)
    body.save_pretrained(str(tmp_path / "body"))
    with caplog.at_level("WARNING", logger="headstart"):
        model = Checkpoint(Checkpoint.Config(path=tmp_path / "body")).build(vocabulary(), 32, HEADS[family])
    lines = [record.getMessage() for record in caplog.records if record.name == "headstart"]
    shared = {id(parameter) for parameter in model.base_model.parameters()}
    head = [name for name, parameter in model.named_parameters() if id(parameter) not in shared]
    assert len(lines) == bool(head), "a head that only shares the embeddings is complete"
    if head:
        assert f"{tmp_path / 'body'} has no weights for " in lines[0] and "starts untrained" in lines[0]
