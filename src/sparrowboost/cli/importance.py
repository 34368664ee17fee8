"""`sparrow importance`: which features a model uses."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparrowboost.cli.options import add_command, add_storage
from sparrowboost.cli.show import SHOWN_FEATURES, show_table


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "importance",
        "MODEL [options]",
        run,
        "Show which features matter most to a model.",
        "sparrow importance model.json --top 10",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument(
        "--kind",
        choices=("gain", "splits"),
        default="gain",
        help="share of the loss removed, or of the splits (default: %(default)s)",
    )
    parser.add_argument(
        "--top",
        type=_count,
        default=SHOWN_FEATURES,
        help="number of features to show; 0 shows all (default: %(default)s)",
    )
    add_storage(parser)
    parser.add_argument("--json", action="store_true", help="print all features as JSON")


def run(args: argparse.Namespace) -> None:
    from sparrowboost.model.importance import feature_importances
    from sparrowboost.model.model import load_model

    model = load_model(args.model, storage_options=args.storage_options)
    shares = feature_importances(model, args.kind).tolist()
    ranked = sorted(zip(model.feature_names, shares, strict=True), key=lambda pair: -pair[1])
    if args.json:
        print(json.dumps(dict(ranked), indent=2))
        return
    shown = [pair for pair in ranked if pair[1] > 0][: args.top or None]
    rows = [(f"{share:.2%}", name) for name, share in shown]
    show_table((f"share of {args.kind}", "feature"), rows, right=(0,))
    if len(shown) < len(ranked):
        used = sum(share > 0 for share in shares)
        print(f"{len(shown)} of {len(ranked)} features; the model uses {used} (--top 0 shows them)")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
