"""`sparrow inspect`: what a store or a model contains."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from sparrowboost.cli.options import add_command, add_json, add_storage
from sparrowboost.cli.show import (
    feature_facts,
    label_meaning,
    show_features,
    store_facts,
    summary,
)

if TYPE_CHECKING:
    from sparrowboost.model.model import Model


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "inspect",
        "PATH [options]",
        run,
        "Show what a store or a model contains: rows, features, bins, trees.",
        "sparrow inspect store/",
    )
    parser.add_argument("path", help="folder of a store, or a model file")
    parser.add_argument("--all", action="store_true", help="show every feature")
    parser.add_argument("--verify", action="store_true", help="also verify every block's checksum")
    add_storage(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.runtime.disk import is_remote, local_path

    if is_remote(args.path) or local_path(args.path).is_file():
        _inspect_model(args)
    else:
        _inspect_store(args)


def _inspect_store(args: argparse.Namespace) -> None:
    from sparrowboost.store.dataset import Dataset

    dataset = Dataset(args.path, verify=args.verify)
    if args.json:
        facts = store_facts(dataset) | {"features": feature_facts(dataset.binning.features)}
        print(json.dumps(facts, indent=2))
        return
    print(summary(dataset))
    show_features(dataset.binning.features, every=args.all)
    if args.verify:
        print(f"the checksums of all {dataset.n_blocks} blocks are correct.")


def _inspect_model(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model

    model = load_model(args.path, storage_options=args.storage_options)
    if args.json:
        print(json.dumps(_model_facts(model), indent=2))
        return
    offset = "" if model.offset_name is None else f", offset {model.offset_name}"
    print(f"{model}\n{label_meaning(model)}{offset}")
    show_features(model.binning.features, every=args.all)


def _model_facts(model: Model) -> dict[str, Any]:
    return {
        "trees": model.n_trees,
        "digest": model.digest,
        "task": model.task,
        "loss": model.loss,
        "loss_options": dict(model.loss_options),
        "base_score": model.base_score,
        "label": model.label_name,
        "offset": model.offset_name,
        "classes": list(model.classes),
        "features": feature_facts(model.binning.features),
    }
