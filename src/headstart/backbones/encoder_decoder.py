"""Encoder-decoders: two layouts of transformers, with named sizes and optionally shared layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.backbones.sizes import SIZES, Size, SizedBackbone, SizeName, SizeSettings
from headstart.core.data import Vocabulary
from headstart.core.lazy import torch, transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class EncoderDecoder(SizedBackbone):
    """Encoder-decoder (t5, bart) that reads a text bidirectionally and generates another from left to right."""

    paper: ClassVar[str] = "Raffel et al. 2020, T5; Lewis et al. 2020, BART"

    class Config(SizeSettings):
        """The layout, its size, and whether encoder and decoder share layers."""

        family: Literal["encoder-decoder"] = "encoder-decoder"
        kind: Literal["t5", "bart"] = Field(
            "t5", description="layout of the network; t5 has relative positions, bart learned ones"
        )
        size: SizeName = Field("mini", description=f"one of {', '.join(SIZES)}, for encoder and decoder each")
        dropout: float = Field(
            0.1, ge=0, lt=1, description="T5 and BART used 0.1; use 0 for a single pass over the text"
        )
        max_length: int = Field(512, ge=8, le=65536, description="longest row that the model can read")
        tie: bool = Field(
            False, description="encoder and decoder layers share weights (T5, table 2: almost the same quality)"
        )

    def layout(self, size: Size, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Return the config of the selected kind."""
        return _CONFIGS[self.config.kind](size, self.config, vocabulary)

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a randomly initialized model, with shared layers if `tie` is set."""
        model = super().build(vocabulary, seq_length, auto_class, scale, **changes)
        if self.config.tie:
            tie_layers(model)
        return model


def tie_layers(model: PreTrainedModel) -> None:
    """Make each decoder layer share the weights of the encoder layer of the same index, except cross-attention.

    In training, one parameter has two names. A checkpoint contains both copies, because transformers 5 does not support
    this tie and would initialize the second one randomly. The artifact is therefore a plain model with the same logits;
    call this function again to continue training with shared layers. T5's relative position biases are not shared,
    because their buckets are distances to both sides in the encoder and to the left only in the decoder.
    """
    encoder, decoder = _layers(model.get_encoder()), _layers(model.get_decoder())
    targets: list[str] = []
    names = {id(module): name for name, module in model.named_modules()}
    # A model whose head reads only the encoder has no decoder.
    for encoder_layer, decoder_layer in zip(encoder, decoder, strict=True) if decoder else ():
        for source, target in zip(_common_modules(encoder_layer), _common_modules(decoder_layer), strict=True):
            for name, parameter in source.named_parameters():
                if "relative_attention_bias" not in name:
                    parent, _, leaf = name.rpartition(".")
                    setattr(target.get_submodule(parent), leaf, parameter)
                    targets.append(f"{names[id(target)]}.{name}")
    model.register_state_dict_post_hook(partial(_separate, targets))


def _separate(targets: Sequence[str], _: torch.nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    """Clone the tied weights in a state dict, so that each name has its own tensor."""
    for name in targets:
        state[prefix + name] = state[prefix + name].clone()


def _layers(stack: torch.nn.Module) -> Sequence[torch.nn.Module]:
    layers: Sequence[torch.nn.Module] = getattr(stack, "block" if hasattr(stack, "block") else "layers", ())
    return layers


def _common_modules(layer: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that encoder and decoder layers have in common: self-attention, feed-forward and norms."""
    if isinstance(steps := getattr(layer, "layer", None), torch.nn.ModuleList):
        return [steps[0], steps[-1]]
    names = ("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
    return [layer.get_submodule(name) for name in names]


def _t5(size: Size, config: EncoderDecoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    network = transformers.T5Config(
        vocab_size=vocabulary.size,
        num_layers=size.layers,
        d_model=size.hidden,
        num_heads=size.heads,
        d_kv=size.hidden // size.heads,
        d_ff=4 * size.hidden,
        dropout_rate=config.dropout,
        classifier_dropout=config.dropout,
    )
    # T5 has no beginning-of-text token; the padding token starts the decoder.
    network.decoder_start_token_id = vocabulary.pad
    return network


def _bart(size: Size, config: EncoderDecoder.Config, vocabulary: Vocabulary) -> PreTrainedConfig:
    return transformers.BartConfig(
        vocab_size=vocabulary.size,
        d_model=size.hidden,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=4 * size.hidden,
        decoder_ffn_dim=4 * size.hidden,
        dropout=config.dropout,
        attention_dropout=config.dropout,
        activation_dropout=config.dropout,
        classifier_dropout=config.dropout,
        max_position_embeddings=config.max_length,
        # BART's decoder starts with the end-of-text token, as in its released checkpoints.
        decoder_start_token_id=vocabulary.sep,
        # Do not force an end-of-text token that the model did not generate.
        forced_eos_token_id=None,
    )


_CONFIGS: dict[str, Callable[[Size, EncoderDecoder.Config, Vocabulary], PreTrainedConfig]] = {"t5": _t5, "bart": _bart}
