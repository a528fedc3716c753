"""Fill the blocks of the documentation that show a file, from the file itself: `make docs`.

A block that follows a line such as `<!-- from PATH, START -->` is filled. PATH is below the repository, `SERVICE/`
stands for the folder of the generated service. START is `def name` or `class name`, for that piece of Python, or the
first line of a paragraph; without it the whole file is taken.

`python docs/refresh.py --check` changes nothing, and exits with 1 when a block is not what it should be.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVICE = ROOT / "{{cookiecutter.project_slug}}"
BLOCK = re.compile(
    r"^<!-- from (?P<path>[^,\n]+?)(?:, (?P<start>[^\n]+?))? -->\n(?P<fence>```[^\n]*\n)(?P<text>.*?)^```$",
    re.M | re.S,
)


class Rotten(Exception):
    """A block names something that is not there; the text says which, and where."""


def source_of(path: str) -> Path:
    """Return the file that a block names."""
    if not path.startswith("SERVICE/"):
        return ROOT / path
    name = path.removeprefix("SERVICE/")
    example = SERVICE / f"{{{{cookiecutter.__examples}}}}{name}"
    return example if example.exists() else SERVICE / name


def piece(text: str, start: str | None) -> str | None:
    """Return the part of a file that begins with a definition or a line; None where there is none."""
    if start is None:
        return text
    lines = text.splitlines(keepends=True)
    if found := re.fullmatch(r"(?:def|class) (\w+)", start):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == found[1]:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
        return None
    for number, line in enumerate(lines):
        if line.startswith(start):
            paragraph = "".join(lines[number:]).partition("\n\n")[0]
            return paragraph.rstrip("\n") + "\n"
    return None


def filled(document: str, name: str) -> str:
    """Return a document with its blocks filled; raises Rotten."""

    def fill(block: re.Match) -> str:
        file = source_of(block["path"])
        text = piece(file.read_text(encoding="utf-8"), block["start"]) if file.is_file() else None
        if text is None:
            what = f"{block['path']}, {block['start']}" if block["start"] else block["path"]
            raise Rotten(f"{name}: there is no {what}: correct the comment above its block.")
        head = block[0].partition("\n")[0]
        return f"{head}\n{block['fence']}{text}```"

    return BLOCK.sub(fill, document)


def main() -> None:
    """Fill the blocks of every document, or say which ones are old."""
    old = []
    for document in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]):
        text = document.read_text(encoding="utf-8")
        name = document.relative_to(ROOT).as_posix()
        try:
            new = filled(text, name)
        except Rotten as error:
            sys.exit(str(error))
        if new != text:
            old.append(name)
            if "--check" not in sys.argv:
                document.write_text(new, encoding="utf-8")
    if old and "--check" in sys.argv:
        sys.exit(f"{', '.join(old)}: a block is not what its file says any more: make docs.")


if __name__ == "__main__":
    main()
