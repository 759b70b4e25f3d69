"""Token classification: one label for every word of a sentence, such as part-of-speech tags or named entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import ArtifactError, DataError
from headstart.core.lazy import F
from headstart.tasks.base import BaseTask, Padding, label_set, named_labels, softmax
from headstart.tasks.framing import start_token
from headstart.tasks.labelled import LABELS, TEXTS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Tag(BaseTask):
    """Token classification: one label per word, for part-of-speech tagging, or named entities with BIO tags."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 5.3; Tjong Kim Sang & De Meulder 2003, CoNLL-2003"
    head: ClassVar[str] = "AutoModelForTokenClassification"
    pipeline: ClassVar[str | None] = "token-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")
    paddings: ClassVar[Mapping[str, Padding]] = {**BaseTask.paddings, "word_mask": Padding(0)}

    class Config(Section):
        """The columns of the words and their tags, and the metric."""

        kind: Literal["tag"] = "tag"
        words: str = Field("tokens", description="the column with the list of words of each sentence")
        label: str = Field("tags", description="the column with the list of tags, one per word")
        metric: Literal["seqeval_f1", "token_accuracy"] | None = Field(
            None,
            description="the metric that selects models; default: seqeval_f1 for BIO tags, token_accuracy for others",
        )

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns of the words and their tags."""
        tags = InputColumn(self.config.label, LABELS, "task.label", is_gold=True)
        return [InputColumn(self.config.words, TEXTS, "task.words"), tags]

    def fit_labels(self, train: Examples) -> None:
        """Collect the tag set from the training rows, and the most common tag for words that the model cannot see."""
        counts = Counter(tag for _, tags in self._sentences(train) for tag in tags)
        self.labels = label_set(counts)
        self.most_common = max(self.labels, key=lambda tag: counts[tag])
        if len(self.labels) < 2:
            raise DataError(
                f"all {len(train)} training rows of {train.source} have the tag {self.labels[0]!r} only",
                allowed="Tagging needs two or more tags",
                do="Raise data.train_rows or check task.label",
            )
        if self.config.metric == "seqeval_f1" and not self._has_spans():
            raise DataError(
                f"task.metric is seqeval_f1, but the tags of {train.source} mark no spans: {self.labels[:5]}",
                allowed="seqeval_f1 needs tags such as B-PER, I-PER and O",
                do="Set task.metric to token_accuracy",
            )

    def state(self) -> dict[str, Any]:
        """Return the tag set and the most common tag."""
        return {"labels": self.labels, "commonest": self.most_common}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the tag set and the most common tag."""
        self.labels, self.most_common = list(state["labels"]), state["commonest"]

    def head_settings(self) -> dict[str, Any]:
        """Return a head with one output per tag."""
        return named_labels(self.labels)

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize the sentences as running text; one token of each word is labeled, the others are ignored.

        The labeled token is the first (BERT) or, for a decoder, the last, which alone has read the whole word.
        `word_mask` marks these tokens, and `visible_words` lists their words. Words beyond max_length, and words
        without tokens, are not visible.
        """
        if not spec.tokenizer.is_fast:
            raise ArtifactError("the tokenizer gives no character offsets", do="Use a fast tokenizer")
        indices = {tag: index for index, tag in enumerate(self.labels)}
        sentences = list(self._sentences(examples))
        encoded = spec.tokenizer(
            [" ".join(words) for words, _ in sentences], truncation=True, max_length=spec.max_length,
            return_attention_mask=False, return_offsets_mapping=True,
        )  # fmt: skip
        keys = [key for key in ("input_ids", "token_type_ids") if key in encoded]
        features: list[Feature] = []
        for row, (words, tags) in enumerate(sentences):
            owners = word_of_tokens(words, encoded["offset_mapping"][row])
            token_of: dict[int, int] = {}
            for token, word in enumerate(owners):
                if word is not None and (spec.family == "decoder" or word not in token_of):
                    token_of[word] = token
            word_mask, labels = [0] * len(owners), [-100] * len(owners)
            for word, token in token_of.items():
                # A tag without training rows cannot be predicted; it counts as an error.
                word_mask[token], labels[token] = 1, indices.get(tags[word], -100)
            feature = {key: encoded[key][row] for key in keys}
            if not owners:
                # A decoder's tokenizer may give no tokens for a sentence, but a network needs at least one.
                feature, word_mask, labels = {"input_ids": [start_token(spec)]}, [0], [-100]
            features.append(
                feature
                | {"labels": labels, "word_mask": word_mask, "visible_words": sorted(token_of), "words": len(words)}
            )
        return features

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy, summed over the words."""
        return F.cross_entropy(self.logits(model, batch).flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return for each sentence the logits of its visible words."""
        logits = self.logits(model, batch).detach().cpu().numpy()
        return [row[mask] for row, mask in zip(logits, batch["word_mask"].bool().cpu().numpy(), strict=True)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the most likely tag of each visible word, and the most common training tag for the others."""
        predictions = []
        for logits, feature in zip(outputs, features, strict=True):
            tags = [self.most_common] * feature["words"]
            for word, best in zip(feature["visible_words"], np.argmax(logits, axis=1), strict=True):
                tags[word] = self.labels[int(best)]
            predictions.append(tags)
        return predictions

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each tag for every word; a word that the model does not see has none."""
        scores: list[Any] = []
        for logits, feature in zip(outputs, features, strict=True):
            words: list[dict[Any, float]] = [{} for _ in range(feature["words"])]
            for word, row in zip(feature["visible_words"], logits, strict=True):
                words[word] = dict(zip(self.labels, softmax(row), strict=True))
            scores.append(words)
        return scores

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Return a note with the number of words that the model does not see."""
        words = sum(feature["words"] for feature in features)
        unseen = words - sum(len(feature["visible_words"]) for feature in features)
        if not unseen:
            return []
        why = "they are beyond training.max_length, or the tokenizer gives no tokens for them"
        return [f"{unseen:,} of {words:,} words get the most common tag, {self.most_common!r}: {why}."]

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first; seqeval_f1 needs BIO tags."""
        usual = ["seqeval_f1", "token_accuracy"] if self._has_spans() else ["token_accuracy"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Tag capitalized words as names."""
        words = [text.split() for text in texts]
        tags = [["B-NAME" if word[0].isupper() else "O" for word in sentence] for sentence in words]
        return Examples({self.config.words: words}, tags, "toy rows")

    def _has_spans(self) -> bool:
        return any(isinstance(tag, str) and tag[:2] in ("B-", "I-") for tag in self.labels)

    def _sentences(self, examples: Examples) -> Iterator[tuple[list[str], list[Any]]]:
        for row, (words, tags) in enumerate(zip(examples.columns[self.config.words], examples.labels, strict=True)):
            if len(words) != len(tags):
                raise DataError(
                    f"{examples.source}, row {row + 1} has {len(words)} words, but {len(tags)} tags",
                    allowed="Every word needs one tag",
                    do="Correct or remove that row",
                )
            yield words, tags


def word_of_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the word index of each token of the words joined by spaces; None for special tokens and spaces.

    Sentences are tokenized as running text and not word by word, because byte-level and SentencePiece tokenizers
    encode a word with the space before it: single words would get tokens that pre-training never saw.
    """
    owner: list[int | None] = []
    for index, word in enumerate(words):
        owner += [*(None if character.isspace() else index for character in word), None]
    return [next((owner[i] for i in range(start, end) if owner[i] is not None), None) for start, end in offsets]
