"""C4's rules: remove lines that are not sentences, and drop pages of placeholder text, code or too few sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.clean.rules import Rule, Values, at_least, at_most

if TYPE_CHECKING:
    from daft import Expression

_POLICY = r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"


class C4(Section):
    """Thresholds of C4's rules, as published. C4's list of bad words is not included."""

    paper: ClassVar[str] = "Raffel et al. 2020, T5, section 2.2"
    counts: ClassVar[tuple[str, ...]] = ("sentences", "lorem ipsum", "curly bracket")

    ended_lines: bool = Field(True, description="keep only lines that end with a punctuation mark")
    min_words_per_line: int = Field(5, ge=0, le=50, description="remove shorter lines")
    javascript_lines: bool = Field(True, description="remove lines that mention Javascript")
    policy_lines: bool = Field(True, description="remove lines on terms of use, privacy and cookies")
    min_sentences: int = Field(3, ge=0, description="minimum number of sentences in the remaining text")
    lorem_ipsum: bool = Field(True, description="drop placeholder text")
    curly_bracket: bool = Field(True, description="drop documents that contain a {, which is mostly code")

    def rules(self) -> list[Rule]:
        """Return the rules in the order in which they are applied."""
        rules = [at_least("c4.sentences", "sentences", self.min_sentences)]
        if self.lorem_ipsum:
            rules.append(at_most("c4.lorem_ipsum", "lorem ipsum", 0))
        if self.curly_bracket:
            rules.append(at_most("c4.curly_bracket", "curly bracket", 0))
        return rules

    @staticmethod
    def measures(counts: Values) -> Values:
        """Compute the measures that the rules compare with their thresholds."""
        return {name: counts[name] for name in C4.counts}

    def remove_bad_lines(self, text: Expression) -> Expression:
        """Return the text without the lines that these rules remove."""
        from daft.functions import regexp_replace, strip

        if self.javascript_lines:
            text = regexp_replace(text, r"(?i)[^\n]*\bjavascript\b[^\n]*\n?", "")
        if self.policy_lines:
            text = regexp_replace(text, rf"(?i)[^\n]*(?:{_POLICY})[^\n]*\n?", "")
        if self.min_words_per_line > 1:
            few = self.min_words_per_line - 2
            text = regexp_replace(text, rf"(?m)^ *(?:\S+ +){{0,{few}}}\S+ *$\n?", "")
        if self.ended_lines:
            text = regexp_replace(text, r"""(?m)^[^\n]*[^\n.!?"”]$\n?""", "")
        return strip(text)
