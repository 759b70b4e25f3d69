"""The questions of "Datasheets for Datasets" (Gebru et al. 2021) that only a person can answer, each with a name."""

from __future__ import annotations

QUESTIONS: dict[str, dict[str, str]] = {
    "Motivation": {
        "motivation.purpose": "For what purpose was the corpus created?",
        "motivation.creators": "Who created it, and on behalf of whom?",
        "motivation.funding": "Who funded it?",
    },
    "Composition": {
        "composition.missing": "Is anything missing from the documents that a reader should know of?",
        "composition.confidential": "Does it hold data that might be confidential?",
        "composition.offensive": "Does it hold what might offend, insult or threaten, and was that looked for?",
        "composition.people": "Does it speak of people, and can they be identified in spite of the placeholders?",
    },
    "Collection": {
        "collection.how": "How was the raw text acquired, by whom, and over what time?",
        "collection.consent": "Were the authors told, did they agree, and can they withdraw?",
        "collection.review": "Was there an ethical review?",
    },
    "Uses": {
        "uses.past": "For what has it been used?",
        "uses.unfit": "For what should it not be used?",
        "uses.risks": "What in its making might harm or mislead later users?",
    },
    "Distribution": {
        "distribution.who": "To whom is it given, how, and when?",
        "distribution.terms": "Under what terms, given the licences of its sources?",
    },
    "Maintenance": {
        "maintenance.who": "Who looks after it, and how can they be reached?",
        "maintenance.updates": "Will it be corrected or extended, and will old versions stay?",
    },
}
