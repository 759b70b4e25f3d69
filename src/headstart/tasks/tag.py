"""Tagging: one label for every word of a sentence, for parts of speech and named entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import ArtifactError, DataError
from headstart.tasks.base import BaseTask, Padding, label_set, named_labels
from headstart.tasks.framing import beginning
from headstart.tasks.labelled import LABELS, TEXTS


class Tag(BaseTask):
    """One label for every word: parts of speech, or spans such as names, by B-, I- and O tags."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 5.3; Tjong Kim Sang & De Meulder 2003, CoNLL-2003"
    head: ClassVar[str] = "AutoModelForTokenClassification"
    pipeline: ClassVar[str | None] = "token-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")
    paddings: ClassVar[Mapping[str, Padding]] = {**BaseTask.paddings, "speaks": Padding(0)}

    class Config(Section):
        """Which columns hold the words and their tags, and how the result is judged."""

        kind: Literal["tag"] = "tag"
        words: str = Field("tokens", description="the column with a list of words for each sentence")
        label: str = Field("tags", description="the column with as many tags")
        metric: Literal["seqeval_f1", "token_accuracy"] | None = Field(
            None, description="selects models; seqeval_f1 for B-, I- and O tags, token_accuracy for others by default"
        )

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the words and their tags, the same in every split."""
        tags = InputColumn(self.config.label, LABELS, "task.label", is_gold=True)
        return [InputColumn(self.config.words, TEXTS, "task.words"), tags]

    def fit_labels(self, train: Examples) -> None:
        """Take the tag set from the training rows, and the commonest tag for words that the model cannot see."""
        counts = Counter(tag for _, tags in self._sentences(train) for tag in tags)
        self.labels = label_set(counts)
        self.commonest = max(self.labels, key=lambda tag: counts[tag])
        if len(self.labels) < 2:
            raise DataError(
                f"{train.source} has the single tag {self.labels[0]!r} in its {len(train)} training rows",
                allowed="Tagging needs two or more",
                do="Raise data.train_rows or check task.label",
            )
        if self.config.metric == "seqeval_f1" and not self._spells_spans():
            raise DataError(
                f"task.metric is seqeval_f1, and the tags of {train.source} spell no spans: {self.labels[:5]}",
                allowed="Spans are told by tags such as B-PER, I-PER and O",
                do="Set task.metric to token_accuracy",
            )

    def state(self) -> dict[str, Any]:
        """Return the tag set and the commonest tag."""
        return {"labels": self.labels, "commonest": self.commonest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take both back."""
        self.labels, self.commonest = list(state["labels"]), state["commonest"]

    def head_settings(self) -> dict[str, Any]:
        """Return one output for each tag."""
        return named_labels(self.labels)

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenise the sentences as running text; one token of each word speaks for it, the others are not predicted.

        It is the first (BERT), or in a decoder the last, which alone has read the whole word. `speaks` marks it and
        `words` counts them; a word that lies beyond max_length, or of which the tokenizer leaves nothing, has none.
        """
        if not reading.tokenizer.is_fast:
            raise ArtifactError("the tokenizer cannot tell where its tokens stand in a text", do="Use a fast tokenizer")
        number = {tag: index for index, tag in enumerate(self.labels)}
        sentences = list(self._sentences(examples))
        encoded = reading.tokenizer(
            [" ".join(words) for words, _ in sentences], truncation=True, max_length=reading.max_length,
            return_attention_mask=False, return_offsets_mapping=True,
        )  # fmt: skip
        keys = [key for key in ("input_ids", "token_type_ids") if key in encoded]
        features: list[Feature] = []
        for row, (words, tags) in enumerate(sentences):
            owners = word_of_tokens(words, encoded["offset_mapping"][row])
            speaker: dict[int, int] = {}
            for place, word in enumerate(owners):
                if word is not None and (reading.family == "decoder" or word not in speaker):
                    speaker[word] = place
            speaks, labels = [0] * len(owners), [-100] * len(owners)
            for word, place in speaker.items():
                # A tag that no training row has cannot be predicted; it counts as missed.
                speaks[place], labels[place] = 1, number.get(tags[word], -100)
            feature = {key: encoded[key][row] for key in keys}
            if not owners:
                # A decoder's tokenizer may leave nothing of a sentence, and a network reads one token at least.
                feature, speaks, labels = {"input_ids": [beginning(reading)]}, [0], [-100]
            features.append(
                feature | {"labels": labels, "speaks": speaks, "spoken": sorted(speaker), "words": len(words)}
            )
        return features

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy, summed over the words."""
        return F.cross_entropy(self.logits(model, batch).flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return for each sentence the logits of the words that the model sees."""
        logits = self.logits(model, batch).detach().cpu().numpy()
        return [row[speaks] for row, speaks in zip(logits, batch["speaks"].bool().cpu().numpy(), strict=True)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Give each word its likeliest tag, and the commonest of training to one that the model does not see."""
        predictions = []
        for logits, feature in zip(outputs, features, strict=True):
            tags = [self.commonest] * feature["words"]
            for word, best in zip(feature["spoken"], np.argmax(logits, axis=1), strict=True):
                tags[word] = self.labels[int(best)]
            predictions.append(tags)
        return predictions

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Say how many words the model does not see."""
        words = sum(feature["words"] for feature in features)
        unseen = words - sum(len(feature["spoken"]) for feature in features)
        if not unseen:
            return []
        why = "beyond training.max_length, or nothing to the tokenizer"
        return [f"{unseen:,} of {words:,} words are tagged {self.commonest!r} unseen: {why}."]

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics, the selecting one first; spans are judged only where the tags spell them."""
        usual = ["seqeval_f1", "token_accuracy"] if self._spells_spans() else ["token_accuracy"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Tag capitalised words as names."""
        words = [text.split() for text in texts]
        tags = [["B-NAME" if word[0].isupper() else "O" for word in sentence] for sentence in words]
        return Examples({self.config.words: words}, tags, "toy rows")

    def _spells_spans(self) -> bool:
        return any(isinstance(tag, str) and tag[:2] in ("B-", "I-") for tag in self.labels)

    def _sentences(self, examples: Examples) -> Iterator[tuple[list[str], list[Any]]]:
        for row, (words, tags) in enumerate(zip(examples.columns[self.config.words], examples.labels, strict=True)):
            if len(words) != len(tags):
                raise DataError(
                    f"{examples.source}, row {row + 1} has {len(words)} words and {len(tags)} tags",
                    allowed="Every word needs one tag",
                    do="Mend or drop that row",
                )
            yield words, tags


def word_of_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Say for each token of the words joined by spaces which word it belongs to; None for special tokens and blanks.

    Sentences are read as text and not word by word, because byte-level and SentencePiece tokenizers write a word with
    the space before it: given alone, words would be spelt as pre-training never saw them.
    """
    owner: list[int | None] = []
    for number, word in enumerate(words):
        owner += [*(None if character.isspace() else number for character in word), None]
    return [next((owner[at] for at in range(start, end) if owner[at] is not None), None) for start, end in offsets]
