"""What users can call changes only where somebody has written the change down."""

from __future__ import annotations

import subprocess
import sys

from tests.surface.public_surface import MODULES, ROOT, SNAPSHOT, surface

PACKAGE = ROOT / "agentkernel"


def test_public_surface_is_the_one_that_is_written_down() -> None:
    """Each name and signature is somebody's program: a change is made on purpose."""
    written = SNAPSHOT.read_text("utf-8")
    assert surface() == written, "run: python -m tests.surface.public_surface"


def test_list_of_public_names_is_the_one_that_the_docstrings_give() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reference", "--check"], cwd=ROOT, check=False
    )
    assert done.returncode == 0, "run: scripts/reference"


def test_every_public_package_is_in_the_list_of_public_names() -> None:
    """A package that nobody lists has a surface that nobody looks at."""
    folders = {
        init.parent.relative_to(ROOT)
        for init in PACKAGE.rglob("__init__.py")
        if "import" in init.read_text("utf-8")
    }
    public = {
        ".".join(folder.parts)
        for folder in folders
        if not any(part.startswith("_") for part in folder.parts)
    }
    assert public <= set(MODULES)
