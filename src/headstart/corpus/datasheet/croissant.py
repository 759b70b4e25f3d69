"""Croissant metadata (JSON-LD), from which hubs and loaders read the content of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_FIELDS = {
    "id": "file and row that the document was read from",
    "source": "name of the source in the recipe",
    "url": "URL of the page, where it is known",
    "language": "language, detected by lid.176",
    "text": "text after cleaning",
}


def describe(facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the metadata of the Parquet files in a corpus folder."""
    splits = [split for split in facts["splits"] if any((folder / "documents" / split).glob("*.parquet"))]
    licenses = sorted({source["license"] for source in facts["sources"] if source["license"]})
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": facts["title"],
        "description": facts["answers"].get(
            "motivation.purpose", "A text corpus, cleaned, deduplicated and documented; DATASHEET.md describes it."
        ),
        "license": licenses or ["not given"],
        "version": "1.0.0",
        "inLanguage": list(facts["languages"]),
        "distribution": [_files(split) for split in splits],
        "recordSet": [_records(split) for split in splits],
    }


def _files(split: str) -> dict[str, Any]:
    """Return the entry for the Parquet files of a split, relative to this metadata; the manifest has their hashes."""
    return {
        "@type": "cr:FileSet",
        "@id": f"parquet-{split}",
        "name": f"parquet-{split}",
        "encodingFormat": "application/x-parquet",
        "includes": f"documents/{split}/*.parquet",
    }


def _records(split: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": split,
        "name": split,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{split}/{name}",
                "name": name,
                "description": description,
                "dataType": "sc:Text",
                "source": {"fileSet": {"@id": f"parquet-{split}"}, "extract": {"column": name}},
            }
            for name, description in _FIELDS.items()
        ],
    }
