"""Hidden states of words, similarities and CKA: hand-made cases, and states of real networks read a second time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.errors import DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.probe.attention_maps import tokenize_words
from headstart.stages.probe.hidden.cka import linear_cka, unit_grams
from headstart.stages.probe.hidden.similarity import (
    intra_sentence_similarity,
    nearest,
    pair_cosines,
    self_similarity,
)
from headstart.stages.probe.hidden.states import spaced_layers, word_states
from headstart.stages.probe.hidden.static_words import input_embeddings, nearest_words

SENTENCES = [
    ["and", "the", "king", "went", "up", "unto", "the", "city"],
    ["Nebuchadnezzar", "worshipped", "him"],
    ["and", "he", "said"],
]


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory, tiny_tokenizer):
    torch.manual_seed(0)
    backbone = EncoderDecoder(EncoderDecoder.Config.model_validate({"kind": "t5", "size": "tiny"}))
    model = backbone.build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForSeq2SeqLM")
    folder = tmp_path_factory.mktemp("t5")
    model.save_pretrained(str(folder))
    tiny_tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture(params=["bert", "modernbert", "deberta-v2", "albert", "decoder", "encoder-decoder"])
def network(request, network_of, checkpoint, decoder_folder, t5_folder):
    folders = {"decoder": decoder_folder, "encoder-decoder": t5_folder}
    return network_of(folders.get(request.param) or checkpoint(request.param))


def test_states_of_words_are_means_over_their_tokens_in_every_family(network):
    """The states again, from one call of the model for each sentence."""
    states = word_states(network, SENTENCES, "x")
    assert states.keys() == [(i, k) for i, words in enumerate(SENTENCES) for k in range(len(words))]
    body = network.model.get_encoder() if network.family == "encoder-decoder" else network.model.base_model
    row = 0
    for words in SENTENCES:
        sentence = tokenize_words(network, words)
        with torch.no_grad():
            ids = torch.tensor([sentence.ids])
            hidden = body(input_ids=ids, output_hidden_states=True).hidden_states
        assert states.layers == list(range(len(hidden)))
        for tokens in sentence.words:
            expected = np.stack([layer[0, tokens].mean(0).numpy() for layer in hidden])
            np.testing.assert_allclose(states.values[:, row], expected, atol=1e-4)
            row += 1
    assert row == states.values.shape[1]


def test_a_sentence_that_does_not_fit_is_absent(network):
    long = ["king"] * (network.max_length + 1)
    if network.max_length > 10_000:
        pytest.skip("a network without a longest input; un-skipped by one with positions")
    assert set(word_states(network, [long, SENTENCES[0]], "x").sentences.tolist()) == {1}
    with pytest.raises(DataError, match="no sentence of my file fits"):
        word_states(network, [long], "my file")


def test_a_sentence_that_fills_the_positions_of_a_network_is_read(network_of, checkpoint):
    """RoBERTa's positions start after the padding id, so its table has more rows than a text may have tokens."""
    network = network_of(checkpoint("roberta"))
    assert network.max_length == 128 < network.model.config.max_position_embeddings
    sentence = next(
        found
        for count in range(140, 0, -1)
        if (found := tokenize_words(network, ["king"] * count)) and len(found.ids) == network.max_length
    )
    states = word_states(network, [["king"] * len(sentence.words)], "x")
    assert len(states.keys()) == len(sentence.words)


def test_layers_of_a_deep_network_are_spaced_evenly():
    assert spaced_layers(7, 13) == [0, 1, 2, 3, 4, 5, 6]
    assert spaced_layers(31, 4) == [0, 10, 20, 30]
    assert len(spaced_layers(31, 13)) == 13 and spaced_layers(2, 3) == [0, 1]


def test_similarities_by_hand():
    up, right = np.array([0.0, 3.0]), np.array([2.0, 0.0])
    assert self_similarity(np.stack([up, 5 * up])) == pytest.approx(1.0)
    assert self_similarity(np.stack([up, right])) == pytest.approx(0.0)
    assert self_similarity(np.stack([up, up, right])) == pytest.approx(1 / 3), "one of three pairs has the cosine 1"
    assert self_similarity(np.stack([up, -up])) == pytest.approx(-1.0)
    # The mean vector of two unit vectors at a right angle is at 45° to both.
    assert intra_sentence_similarity(np.eye(2)) == pytest.approx(np.sqrt(0.5))
    assert pair_cosines(np.stack([up, up]), np.stack([right, up])).tolist() == pytest.approx([0.0, 1.0])
    assert nearest(up, np.stack([right, up, up + right, -up]), 2) == [
        (1, pytest.approx(1.0)),
        (2, pytest.approx(3 / np.sqrt(13))),
    ]


def test_self_similarity_equals_the_mean_over_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(7, 5)) + 1
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [units[i] @ units[k] for i in range(7) for k in range(i)]
    assert self_similarity(vectors) == pytest.approx(np.mean(pairs))


def test_static_vectors_are_the_input_embeddings(network):
    vectors = input_embeddings(network, ["king", "Nebuchadnezzar", "him"])
    weights = network.model.get_input_embeddings().weight.detach().numpy()
    ids = network.encode("a king")[len(network.encode("a")) :]
    np.testing.assert_allclose(vectors[0], weights[ids].mean(0), atol=1e-6)
    assert [word for word, _ in nearest_words(vectors, ["king", "Nebuchadnezzar", "him"], "king", 5)] != []
    assert nearest_words(np.zeros((2, 3)), ["a", "b"], "a", 1) == [], "a word without a vector has no neighbors"


def random_states(seed, layers=1, words=40, hidden=6):
    return np.random.default_rng(seed).normal(size=(layers, words, hidden)).astype(np.float32)


def test_cka_does_not_change_by_rotation_and_scale():
    states = random_states(0)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))
    turned = (3 * states @ rotation + 7).astype(np.float32)
    assert linear_cka(unit_grams(states), unit_grams(turned)) == pytest.approx(1.0, abs=1e-5)
    stretched = states * np.array([10, 1, 1, 1, 1, 1], np.float32)
    assert linear_cka(unit_grams(states), unit_grams(stretched))[0, 0] < 0.8


def test_cka_of_independent_states_is_zero_even_with_more_dimensions_than_words():
    values = [
        linear_cka(unit_grams(random_states(2 * i, hidden=200)), unit_grams(random_states(2 * i + 1, hidden=200)))[0, 0]
        for i in range(20)
    ]
    assert abs(np.mean(values)) < 0.02
    biased = []
    for i in range(20):
        left, right = (random_states(2 * i + k, hidden=200)[0] for k in (0, 1))
        left, right = left - left.mean(0), right - right.mean(0)
        grams = [side @ side.T for side in (left, right)]
        biased.append((grams[0] * grams[1]).sum() / np.prod([np.linalg.norm(gram) for gram in grams]))
    assert np.mean(biased) > 0.5, "the plain estimate, which is not used"


def test_cka_is_built_from_the_unbiased_hsic_of_song_et_al():
    left, right = random_states(3)[0].astype(np.float64), random_states(4)[0].astype(np.float64)
    right = right + left
    n = len(left)

    def hsic(a, b):
        k, l = (side @ side.T * (1 - np.eye(n)) for side in (a, b))  # noqa: E741
        return np.trace(k @ l) + k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k @ l).sum()

    expected = hsic(left, right) / np.sqrt(hsic(left, left) * hsic(right, right))
    found = linear_cka(*(unit_grams(side[None].astype(np.float32)) for side in (left, right)))[0, 0]
    assert found == pytest.approx(expected, abs=1e-4)
