"""The lists in `.importlinter` that have to name modules name all of them."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "agentkernel"
ABOVE_THE_KERNEL = {"bridges", "cli", "prompt", "stores", "testing", "tools"}
PURE = {
    "_loop.request",
    "_loop.stream",
    "_session.events",
    "_session.fold",
    "_session.repair",
}


def exists(module: str) -> bool:
    path = PACKAGE / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def listed(contract: str, option: str) -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", "utf-8")
    lines = parser[f"importlinter:contract:{contract}"][option].split()
    return {line.removeprefix("agentkernel.") for line in lines}


def private_modules() -> set[str]:
    names = {path.stem for path in PACKAGE.glob("_[!_]*.py")}
    return names | {path.parent.name for path in PACKAGE.glob("_[!_]*/__init__.py")}


@pytest.mark.parametrize(
    ("contract", "option", "wanted"),
    [
        ("public-surface", "source_modules", ABOVE_THE_KERNEL),
        ("public-surface", "forbidden_modules", private_modules()),
        ("pure", "source_modules", PURE),
    ],
)
def test_contract_names_every_module_it_is_about(
    contract: str, option: str, wanted: set[str]
) -> None:
    assert listed(contract, option) >= {name for name in wanted if exists(name)}
