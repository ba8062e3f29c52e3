"""Every code block of the README runs, and what it says about files and commands is so."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^(?:> )?```(\w+)\n(.*?)^(?:> )?```", README, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The code blocks of a language, without the marks of a quotation around them."""
    return [re.sub(r"^> ?", "", code, flags=re.MULTILINE) for found, code in BLOCKS if found == language]


def test_the_python_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    """They may use what the blocks before have made, as a reader would type them."""
    assert len(blocks("python")) >= 5
    names: dict[str, Any] = {}
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        for number, code in enumerate(blocks("python")):
            exec(compile(code, f"README.md, Python block {number}", "exec"), names)
    finally:
        os.chdir(here)


def test_the_first_example_is_short_and_prints_what_the_readme_shows() -> None:
    """A complete model, split and run, in at most 30 lines; its output stands below it."""
    code = blocks("python")[0]
    assert len(code.strip().splitlines()) <= 30
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shown = README.split(code)[1].split("```text\n")[1].split("```")[0]
    assert rounded(printed) == rounded(shown)


def rounded(text: str) -> str:
    """The text with its floats at five decimals: the last bits of a product differ from processor to processor."""
    return re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.5f}", text)


def test_the_make_targets_and_modules_that_it_names_exist() -> None:
    """Each `make X` is a target, each `python -m X` a module."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, re.MULTILINE)):
        assert re.search(rf"^(\.PHONY:.*\b{target}\b|{target}.*:)", makefile, re.MULTILINE), target
    for module in set(re.findall(r"-m ((?:examples|bench|records|engine)[\w.]*)", README)):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module


def test_the_languages_of_all_blocks_are_known() -> None:
    """A block in another language would not be run by anybody."""
    assert {language for language, _ in BLOCKS} <= {"python", "sh", "text"}
