"""Label names of `datasets`: a column of class numbers becomes one of class names.

`datasets` writes the features of a table into the schema of its Parquet and Arrow files, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_FEATURES = b"huggingface"


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes of each column that numbers them, as the schema of a file lists them."""
    try:
        features = json.loads((schema.metadata or {})[_FEATURES])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    found = {column: _names(feature) for column, feature in features.items()}
    return {column: names for column, names in found.items() if names}


def named_schema(schema: pa.Schema, classes: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return the schema of a table with class names."""
    for i, field in enumerate(schema):
        if field.name in classes and _is_numbered(field.type):
            kind = pa.list_(pa.string()) if _is_list(field.type) else pa.string()
            schema = schema.set(i, pa.field(field.name, kind))
    return schema


def with_class_names(table: pa.Table, classes: Mapping[str, Sequence[str]] | None = None) -> pa.Table:
    """Return a table in which columns of class numbers have the names instead; a negative number is a missing label.

    Args:
        table: the table.
        classes: the names of each column; by default those in the schema of the table.
    """
    classes = class_names(table.schema) if classes is None else classes
    for i, field in enumerate(table.schema):
        if field.name in classes and _is_numbered(field.type):
            table = table.set_column(i, field.name, _named(table.column(i), list(classes[field.name])))
    return table


def _names(feature: Any) -> list[str]:
    """Return the names of a feature that is a class label, or a list of them."""
    while isinstance(feature, list) and feature:
        feature = feature[0]
    if not isinstance(feature, dict):
        return []
    if "feature" in feature:
        return _names(feature["feature"])
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_numbered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind.value_type if _is_list(kind) else kind))


def _named(column: pa.ChunkedArray, names: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    if _is_list(column.type):
        rows = column.to_pylist()
        named = [None if row is None else [None if _is_none(i) else names[i] for i in row] for row in rows]
        return pa.array(named, pa.list_(pa.string()))
    known = pc.if_else(pc.less(column, 0), pa.scalar(None, column.type), column)
    return pc.take(pa.array(names, pa.string()), known)


def _is_none(number: int | None) -> bool:
    return number is None or number < 0
