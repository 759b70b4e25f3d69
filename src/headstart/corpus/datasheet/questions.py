"""The questions of "Datasheets for Datasets" (Gebru et al. 2021) that only a person can answer, each with a name."""

from __future__ import annotations

QUESTIONS: dict[str, dict[str, str]] = {
    "Motivation": {
        "motivation.purpose": "For what purpose was the corpus created?",
        "motivation.creators": "Who created it, and on behalf of whom?",
        "motivation.funding": "Who funded it?",
    },
    "Composition": {
        "composition.missing": "Is any information missing from the documents?",
        "composition.confidential": "Does it contain data that might be confidential?",
        "composition.offensive": "Does it contain offensive, insulting or threatening text, and was this checked?",
        "composition.people": "Does it relate to people, and can they be identified in spite of the placeholders?",
    },
    "Collection": {
        "collection.how": "How was the raw text acquired, by whom, and over what time?",
        "collection.consent": "Were the authors notified, did they consent, and can they revoke their consent?",
        "collection.review": "Was there an ethical review?",
    },
    "Uses": {
        "uses.past": "What has it been used for?",
        "uses.unfit": "What should it not be used for?",
        "uses.risks": "What about its collection or cleaning might harm or mislead later users?",
    },
    "Distribution": {
        "distribution.who": "To whom is it distributed, how, and when?",
        "distribution.terms": "Under what terms, given the licenses of its sources?",
    },
    "Maintenance": {
        "maintenance.who": "Who maintains it, and how can they be contacted?",
        "maintenance.updates": "Will it be corrected or extended, and will old versions remain available?",
    },
}
