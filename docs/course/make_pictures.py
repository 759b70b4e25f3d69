"""Write the pictures of the course, one for each concept of its tables: `python docs/course/make_pictures.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from draw import BOTTOM, LEFT, TOP, arrow, bars, box, cells, curves, matrix, note, picture, stack, text
from markupsafe import Markup

from headstart.core.pages.svg import element

FOLDER = Path(__file__).parent / "pictures"
WORDS = ("the", "dog", "bit", "the", "man")
Drawing = tuple[str, str, Sequence[Markup]]
"""The name of a file, the concept as the table of its page writes it, and the parts of the picture."""


def vectors() -> Iterator[Drawing]:
    """Yield the pictures of page 1."""
    yield "subwords", "subword tokens", [
        cells(["unbelievable"], 34), arrow(120, 58, 120, 76), cells(["un", "believ", "able"], 80, "###"),
        note("a rare word, three frequent pieces"),
    ]  # fmt: skip
    counts = ["#-...", "-#...", "..#--", "..-#-", "..--#"]
    yield "counts", "vectors from counts", [
        matrix(counts, 34, 36, 15), arrow(120, 74, 150, 74), matrix(["#.", "#.", ".#", ".#", ".#"], 164, 36, 15),
        note("neighbors counted, then compressed"),
    ]  # fmt: skip
    yield "glove", "GloVe, averaged", [
        arrow(40, 112, 70, 44), arrow(40, 112, 130, 100), arrow(40, 112, 150, 66), text("dog", 72, 44),
        text("the", 134, 106), text("man", 154, 64),
        mean_vector(40, 112, 117, 70), note("the mean of the arrows is the text"),
    ]  # fmt: skip
    yield "bilm", "ELMo's biLM", [
        arrow(20, 42, 220, 42), cells(WORDS, 62), arrow(220, 102, 20, 102), note("one LSTM from each side"),
    ]  # fmt: skip
    yield "sentence", "sentence vectors", [
        cells(WORDS, 34), cells([""] * 5, 60, "-----"),
        *[arrow(30 + 45 * i, 82, 112 + 4 * i, 98) for i in range(5)], box(90, 100, 60, 14, "#"),
        note("the mean of the contextual vectors"),
    ]  # fmt: skip
    yield "static", "static vectors again", [
        stack("----", x=24, width=66), arrow(96, 74, 126, 74),
        *[cells([word, ""], 34 + 21 * i, ".#", 132, 96) for i, word in enumerate(("dog", "bit", "man", "…"))],
        note("a network becomes a table"),
    ]  # fmt: skip
    yield "word-in-context", "word in context", [
        cells(["the", "river", "bank"], 36, "..#"), cells(["a", "bank", "account"], 82, ".x."), arrow(190, 58, 130, 80),
        note("the same vector, or another?"),
    ]  # fmt: skip


def mean_vector(x1: float, y1: float, x2: float, y2: float) -> Markup:
    """Return the mean vector: a broad arrow with its name."""
    return box(x2 - 4, y2 - 4, 8, 8, "#") + arrow(x1, y1, x2, y2) + text("mean", x2 - 4, y2 - 10, "end")


def read_and_predict(
    reads: Sequence[str], fills: str, predicts: Sequence[str], targets: str, remark: str
) -> list[Markup]:
    """Return two rows: what a network reads, and what it predicts below."""
    return [text("reads", LEFT, 42, kind="note"), cells(reads, 46, fills), text("predicts", LEFT, 82, kind="note"),
            cells(predicts, 86, targets), note(remark)]  # fmt: skip


def objectives() -> Iterator[Drawing]:
    """Yield the pictures of page 2."""
    hidden = ("the", "___", "bit", "the", "man")
    yield (
        "causal-lm",
        "causal LM (GPT)",
        read_and_predict(
            WORDS, ".....", ["dog", "bit", "the", "man", "end"], "#####", "every position, from those before it"
        ),
    )
    yield (
        "masked-lm",
        "masked LM (BERT)",
        read_and_predict(hidden, ".-...", WORDS, " #   ", "only what is hidden, from both sides"),
    )
    yield (
        "whole-words",
        "whole words",
        read_and_predict(
            ["the", "___", "___", "came"],
            ".--.",
            ["the", "neigh", "bors", "came"],
            " ## ",
            "all pieces of a word at once",
        ),
    )
    yield "span-boundary", "span boundary (SpanBERT)", [
        cells(["the", "___", "___", "___", "man"], 46, "#---#"), arrow(32, 68, 72, 84), arrow(208, 68, 168, 84),
        cells(["", "dog", "bit", "the", ""], 88, " ### "), note("a span, also from its two edges"),
    ]  # fmt: skip
    yield "replaced-token", "replaced tokens (ELECTRA)", read_and_predict(
        ("the", "cat", "bit", "the", "man"), ".x...", ["no", "yes", "no", "no", "no"], "#####",
        "which tokens were replaced?",
    )  # fmt: skip
    yield (
        "permuted-lm",
        "permuted LM (XLNet)",
        read_and_predict(
            WORDS, ".....", ["4th", "1st", "5th", "2nd", "3rd"], "#####", "some tokens, in a random order"
        ),
    )
    yield "sentence-order", "next sentence, sentence order", [
        cells(["segment A", "segment B"], 42), arrow(64, 70, 64, 84), arrow(176, 70, 176, 84),
        cells(["A, then B?", "or swapped?"], 88, "##"), note("one answer for a pair of segments"),
    ]  # fmt: skip
    yield (
        "span-corruption",
        "span corruption (T5)",
        read_and_predict(
            ["the", "<0>", "the", "<1>"],
            ".-.-",
            ["<0>", "dog bit", "<1>", "man"],
            "-#-#",
            "the decoder writes the spans",
        ),
    )
    yield (
        "denoising",
        "denoising (BART)",
        read_and_predict(["man", "___", "the", "bit"], "x-.x", WORDS, "#####", "the decoder writes the whole text"),
    )
    yield "mixture", "mixture (UL2)", [
        *[cells([name], 36 + 26 * i, ".", 16, 96) for i, name in enumerate(("short spans", "long spans", "prefix"))],
        *[arrow(116, 46 + 26 * i, 158, 62 + 10 * i) for i in range(3)], box(162, 44, 60, 56, "#", "network"),
        note("a share of the rows for each objective"),
    ]  # fmt: skip
    cosine = [(x / 40, 0.5 + 0.5 * math.cos(math.pi * x / 40)) for x in range(41)]
    yield "schedule", "optimizer and schedule", [
        curves([(0, 0), (0.05, 1), (0.75, 1), (1, 0)], [(0, 0), (0.05, 1), *[(0.05 + 0.95 * x, y) for x, y in cosine]],
               dashed=[1]), text("trapezoid", 108, 50), text("cosine", 78, 92),
        note("the learning rate over the budget"),
    ]  # fmt: skip


def networks() -> Iterator[Drawing]:
    """Yield the pictures of page 3."""
    full, lower = ["######"] * 6, ["#" * (i + 1) + "." * (5 - i) for i in range(6)]
    for name, title, rows, remark in (
        ("encoder", "encoder (BERT, ModernBERT)", full, "every token reads every token"),
        ("decoder", "decoder (GPT-2, Llama)", lower, "every token reads those before it"),
    ):
        yield name, title, [matrix(rows, 80, 34, 13.5), text("reads →", 76, 44, "end"), note(remark)]
    yield "encoder-decoder", "encoder-decoder (T5, BART)", [
        stack("###", x=30, width=64), arrow(98, 62, 142, 62), stack("---", x=146, width=64),
        note("one reads the source, one writes"),
    ]  # fmt: skip
    prefix = ["###..."] * 3 + lower[3:]
    yield "attention", "attention masks", [
        *[matrix(rows, 14 + 74 * i, 40, 10.5) for i, rows in enumerate((full, lower, prefix))],
        *[text(name, 46 + 74 * i, 116, "middle") for i, name in enumerate(("both", "left", "prefix"))],
        note("filled: may be read"),
    ]  # fmt: skip
    sizes = {"tiny": (2, 20), "mini": (4, 34), "small": (4, 52), "base": (12, 64)}
    parts, x = [], 14.0
    for name, (layers, width) in sizes.items():
        parts += [box(x, 104 - 5 * (i + 1), width, 4, "#") for i in range(layers)]
        parts.append(text(name, x + width / 2, 117, "middle"))
        x += width + 14
    yield "sizes", "sizes", [*parts, note("more layers, and wider ones")]
    yield "prompting", "prompting", [
        cells(["great film → good"], 34), cells(["a bore → bad"], 57), cells(["I loved it →", "good"], 80, ".#"),
        note("examples in the text, no training"),
    ]  # fmt: skip
    yield "text-to-text", "text to text", [
        cells(["sst2: I loved it"], 40), arrow(120, 64, 120, 80), cells(["good"], 84, "#", 80, 80),
        note("the label is a text that is written"),
    ]  # fmt: skip
    yield "what-fits", "what fits what", [
        *[text(name, 116, 50 + 24 * i, "end") for i, name in enumerate(("masked LM", "causal LM", "T5's spans"))],
        matrix(["#..", "##.", ".##"], 128, 36, 24),
        note("encoder, decoder, encoder-decoder"),
    ]  # fmt: skip


def adaptations() -> Iterator[Drawing]:
    """Yield the pictures of page 4: what is trained is filled."""
    names = ("words", "layer 1", "layer 2", "layer 3", "head")

    def layers(fills: str, remark: str, *more: Markup) -> list[Markup]:
        return [stack(fills, names), *more, note(remark)]

    def beside(width: float, x: float = 166.0) -> list[Markup]:
        return [box(x, TOP + 4 + 16.8 * i, width, 9, "#") for i in (1, 2, 3)]

    yield "full", "full fine-tuning", layers("#####", "everything is trained")
    yield "features", "frozen features", layers("----#", "a head reads the frozen layers")
    yield "linear-probe", "linear probe", layers("---- ", "logistic regression on mean vectors",
                                                 box(80, TOP + 1, 80, 15, "#", "regression"))  # fmt: skip
    yield "lora", "LoRA", layers("----#", "a product of two thin matrices", *beside(5), *beside(14, 174))
    yield (
        "adapters",
        "bottleneck adapters",
        layers(
            "----#",
            "small networks between the layers",
            *[box(104, TOP + 14 + 16.8 * i, 32, 5, "#") for i in (1, 2, 3)],
        ),
    )
    yield "ia3", "(IA)³", layers("----#", "three vectors per layer that rescale", *beside(3), *beside(3, 172),
                                 *beside(3, 178))  # fmt: skip
    yield "bitfit", "BitFit", layers("----#", "the biases of every layer", *[
        box(80, TOP + 3 + 16.8 * i, 6, 11, "#") for i in (1, 2, 3)])  # fmt: skip
    yield "prefix", "prefix and prompt tuning", [
        cells(["", "", *WORDS], 40, "##....."), arrow(120, 64, 120, 78), box(40, 82, 160, 26, "-", "frozen network"),
        note("virtual tokens before the text"),
    ]  # fmt: skip
    yield "top-layers", "top layers", layers("--###", "the upper half and the head")
    yield "gradual-unfreezing", "gradual unfreezing (ULMFiT)", [
        *[stack(fills, x=20 + 54 * i, width=42) for i, fills in enumerate(("----#", "---##", "--###", "-####"))],
        note("one layer more at a time →"),
    ]  # fmt: skip
    yield "layerwise-decay", "layer-wise decay", [
        *[text(name, 74, TOP + 79 - 16.8 * i, "end") for i, name in enumerate(names)],
        *[box(80, TOP + 68 - 16.8 * i, 130 * 0.75 ** (4 - i), 13, "#") for i in range(5)],
        note("how large the steps are"),
    ]  # fmt: skip
    yield "l2-start", "L2-SP, rehearsal", [
        box(56, 70, 10, 10, "-"), text("checkpoint", 61, 98, "middle"), arrow(70, 74, 168, 52),
        box(170, 46, 10, 10, "#"),
        text("fine-tuned", 175, 38, "middle"), arrow(166, 66, 82, 86), text("pulled back", 150, 92, "middle"),
        note("learn the task, stay near the start"),
    ]  # fmt: skip
    yield "contrast", "contrast (SetFit)", [
        *[box(x, y, 9, 9, "#") for x, y in ((40, 50), (72, 88), (92, 44))],
        *[box(x, y, 9, 9, "x") for x, y in ((150, 94), (188, 52), (206, 90))],
        arrow(50, 58, 62, 64), arrow(75, 84, 72, 74), arrow(90, 52, 80, 62), arrow(158, 92, 172, 80),
        arrow(190, 62, 184, 70), arrow(203, 90, 192, 82), note("same label: closer; other label: apart"),
    ]  # fmt: skip
    yield "distillation", "distillation", [
        stack("----", x=24, width=80), stack(" ## ", x=164, width=46), arrow(108, 74, 158, 74),
        text("answers", 133, 66, "middle"), note("a small network learns the answers"),
    ]  # fmt: skip
    yield (
        "scratch",
        "from scratch",
        layers(
            "#####",
            "random weights, no checkpoint",
            *[text("?", 120, TOP + 12.5 + 16.8 * i, "middle", "small inverse") for i in range(5)],
        ),
    )


def evaluation() -> Iterator[Drawing]:
    """Yield the pictures of page 5; its figures are those of the page's table."""
    yield "baselines", "baselines", [
        bars({"SVM": 70.4, "mini encoder": 55.4}, 80, "-#"), note("QNLI with 500 labels: accuracy × 100"),
    ]  # fmt: skip
    spread = [0.1, 0.32, 0.38, 0.55, 0.6, 0.92]
    yield "seeds", "seeds and intervals", [
        *[box(LEFT + 200 * place, 52, 9, 9, "#") for place in spread], arrow(LEFT + 60, 92, LEFT + 142, 92),
        arrow(LEFT + 142, 92, LEFT + 60, 92), text("interval of the mean", 112, 84, "middle"),
        note("six runs that differ in the seed alone"),
    ]  # fmt: skip
    yield "paired", "paired tests", [
        *[arrow(70, 44 + 13 * i, 110 + shift, 44 + 13 * i) for i, shift in enumerate((40, 28, 62, 16, 48, 34))],
        zero_line(70), text("0", 70, 36, "middle"), note("the difference of each seed"),
    ]  # fmt: skip
    power = [(n, 1 - math.exp(-n / 9)) for n in range(31)]
    yield "power", "power", [
        curves(power, [(0, 0.8), (30, 0.8)], dashed=[1]), text("0.8", 30, 45),
        note("seeds → probability of a verdict"),
    ]  # fmt: skip
    yield "calibration", "calibration", [
        curves([(0, 0), (1, 1)], [(x / 20, (x / 20) ** 1.7) for x in range(21)], dashed=[0]),
        text("overconfident", 164, 100, "middle"), note("probability → fraction right"),
    ]  # fmt: skip
    yield (
        "thresholds",
        "thresholds",
        [bars({"at 0.5": 28.3, "tuned": 38.2}, 45, "-#"), note("GoEmotions: macro-F1 × 100")],
    )
    yield "wrong-labels", "wrong labels", [
        matrix(["x" * 20, "x" * 20, "x" * 16 + "-" * 4, "-" * 20, "-" * 20], 20, 38, 10),
        text("56 wrong", 20, 104), note("the first 100 rows of the list"),
    ]  # fmt: skip
    yield "contamination", "contamination", [
        box(LEFT, 44, 220, 26, "-"), box(LEFT, 44, 220 * 2312 / 5463, 26, "x"), text("2,312 of 5,463", LEFT, 88),
        note("test rows that are in part in the text"),
    ]  # fmt: skip
    yield "forgetting", "forgetting", [
        bars({"rehearsal": 0.08, "full": 0.30}, 0.36, "#x", digits=2), note("nats lost on the pre-training text"),
    ]  # fmt: skip
    yield "minimal-pairs", "minimal pairs", [
        cells(["the", "dogs", "bark"], 40, "..#"), cells(["the", "dogs", "barks"], 80, "..x"),
        note("which sentence is likelier?"),
    ]  # fmt: skip
    yield "cloze", "cloze, logit lens", [
        *[text(f"layer {i}", 64, 112 - 22 * (i - 1), "end") for i in (1, 2, 3, 4)],
        *[box(70, 100 - 22 * i, width, 14, "#") for i, width in enumerate((8, 20, 76, 140))],
        note("how likely is the right word?"),
    ]  # fmt: skip
    yield "attention-heads", "attention heads", [
        cells(WORDS, 84), head_arrow(165, 75), head_arrow(210, 75), note("a head goes from each word to another"),
    ]  # fmt: skip


def zero_line(x: float) -> Markup:
    """Return the line of no difference."""
    return box(x - 0.5, TOP + 6, 1, BOTTOM - TOP - 2, "-")


def head_arrow(x1: float, x2: float) -> Markup:
    """Return an arrow over the words, from a word to the one that a head attends to."""
    middle = (x1 + x2) / 2
    return element("line", x1=x1, y1=82, x2=middle, y2=48, class_="arrow") + arrow(middle, 48, x2, 82)


PAGES = {
    "1-vectors": vectors, "2-objectives": objectives, "3-networks": networks, "4-fine-tuning": adaptations,
    "5-evaluation": evaluation,
}  # fmt: skip


def pictures() -> Iterator[tuple[str, str, str, str]]:
    """Yield page, file name, description and SVG of every picture."""
    for page, drawings in PAGES.items():
        for name, concept, parts in drawings():
            yield page, f"{page[0]}-{name}.svg", f"{concept}: {parts[-1].striptags()}", picture(concept, parts)


def main() -> None:
    """Write every picture, and print the lines that show them on each page."""
    for page, name, description, drawing in pictures():
        (FOLDER / name).write_text(drawing, encoding="utf-8")
        print(f"{page}.md: ![{description}](pictures/{name})")


if __name__ == "__main__":
    main()
