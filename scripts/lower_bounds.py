"""Print the lower bounds of pyproject.toml as constraints, for an environment with the oldest versions of all dependencies.

The kernels of GPUs (extra ``gpu``) are left out: their Triton needs a newer torch than the package does. So is
sentence-transformers, which needs newer tokenizers.

Usage: python scripts/lower_bounds.py > constraints-min.txt
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("train", "demo", "text", "report", "sweep", "slurm", "stats", "h5", "test")
HEADER = "# Lower bounds of pyproject.toml: python scripts/lower_bounds.py > constraints-min.txt"

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,]+\])?>=(?P<version>[\d.]+)")


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of each dependency, by its name; the highest where several requirements name one package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(entry for extra in EXTRAS for entry in extras[extra])]
    newer = {match["name"] for match in map(_REQUIREMENT.match, extras["gpu"]) if match} | {"sentence-transformers"}
    bounds: dict[str, str] = {}
    for match in map(_REQUIREMENT.match, requirements):
        if match and match["name"] not in newer:
            bounds[match["name"]] = max(bounds.get(match["name"], "0"), match["version"], key=_order)
    return bounds


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main() -> None:
    print(
        "\n".join(
            [
                HEADER,
                *(f"{name}=={version}" for name, version in sorted(lower_bounds().items(), key=lambda pair: pair[0].lower())),
            ]
        )
    )


if __name__ == "__main__":
    main()
