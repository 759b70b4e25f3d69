"""Rule-based sentence splitting.

No library is used, for three reasons: shards need character offsets into the unchanged text, a corpus of gigabytes
needs the speed of one regular expression, and objectives tolerate a few wrong boundaries. Boundaries are placed only
where every tokenizer splits as well, so encoding sentence by sentence gives the tokens of the whole text. (One
exception: Unigram puts its space marker before a sentence that follows 。 without a space, as at the start of a text.)
"""

from __future__ import annotations

import re

_NEWLINE = "\n\r\u2028\u2029\x85"
# Unicode's White_Space as in the tokenizers' regular expressions; Python's \s adds four control characters.
_BLANKS = " \t\x0b\x0c\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_SPACE = _BLANKS + _NEWLINE
_CLOSING = "\"'”’»›)\\]}」』）】》〉"
_STOP, _WIDE_STOP = ".!?…", "。！？｡"
# A single character class comes first, because `re` scans for it quickly; the groups then tell the cases apart.
_BOUNDARY = re.compile(
    rf"[{_NEWLINE}{_STOP}{_WIDE_STOP}](?:"
    rf"(?<=[{_NEWLINE}])(?P<line>[{_SPACE}]*+)"
    rf"|(?<=[{_STOP}])(?<![{_STOP}][{_STOP}])[{_STOP}]*+[{_CLOSING}]*+(?P<gap>[{_SPACE}]++)"
    rf"|(?<=[{_WIDE_STOP}])(?<![{_WIDE_STOP}][{_WIDE_STOP}])[{_WIDE_STOP}]*+[{_CLOSING}]*+"
    rf"(?P<none>(?:[{_SPACE}]++|(?=[^\W_]))))"
)
_IN_WORD = rf"[^{_SPACE}{_CLOSING}(\[{{“‘«-]"
_LAST_WORD = re.compile(rf"(?<!{_IN_WORD}){_IN_WORD}*\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")
_TITLES = (
    "mr mrs ms messrs dr prof rev hon st gen col maj capt cmdr lt sgt gov sen rep pres mt ft"
    " vs cf viz approx ca e.g i.e hr frau sr sra mme mlle dott bzw"
)
_NUMBERED = "no nos nr vol vols fig figs eq sec ch chap art pp pl jan feb mar apr jun jul aug sep sept oct nov dec"
_NO_STOP, _NO_STOP_BEFORE_NUMBERS = frozenset(_TITLES.split()), frozenset(_NUMBERED.split())
_LOOKBACK_CHARACTERS = 16


def sentence_starts(text: str) -> list[int]:
    """Return the character offset at which each sentence starts: 0 first, and none for an empty text.

    White space between two sentences belongs to the second. A sentence ends at the end of a line, at `. ! ? …` (with
    closing quotes or brackets) before white space, and at `。！？` with or without white space. It does not end before
    a lowercase letter, after initials (J. R. R., U.S.) or after titles and other abbreviations (Dr., No. 5).
    """
    if not text:
        return []
    starts = [0]
    for match in _BOUNDARY.finditer(text):
        end = match.end()
        if end == len(text):
            break
        if match.lastgroup == "gap" and not _ends_sentence(text, match):
            continue
        if match.lastgroup == "line":
            # Spaces before the end of a line belong to the next sentence, like those after it.
            start = match.start()
            while start and text[start - 1] in _BLANKS:
                start -= 1
        else:
            start = match.start(match.lastgroup or 0)
        if start:
            starts.append(start)
    return starts


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    if not set(_NEWLINE).isdisjoint(match["gap"]):
        return True
    following = text[match.end()]
    if following.islower():
        return False
    stop = match.start()
    if text[stop : match.start("gap")] != ".":
        return True
    tail = _LAST_WORD.search(text[max(0, stop - _LOOKBACK_CHARACTERS) : stop])
    word = tail.group() if tail else ""
    if (_INITIALS.match(word) and word[:1].isupper()) or word.lower() in _NO_STOP:
        return False
    return not (word.lower() in _NO_STOP_BEFORE_NUMBERS and following.isnumeric())
