"""Run a notebook of the documentation, and turn it into a page: `mkdocs.yml` names this file as a hook.

    python scripts/notebooks.py docs/notebooks/own-figure.ipynb runs/demo_phantom/2026-01-01_00-00-00

It runs the cells on a finished run, in place of the folder that the first cell names, and writes text and figures below
them, without a kernel. Jupyter opens and runs the file as well.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOKS = "notebooks"


def run(notebook: dict[str, Any], **given: object) -> None:
    """Run the cells and write their outputs below them; what `given` names keeps that value."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        body = ast.parse(source).body
        # What Jupyter would show: the value of the last line, unless that ends in a semicolon.
        shown = isinstance(body[-1], ast.Expr) and not source.endswith(";")
        last = ast.Expression(body.pop().value) if shown else None
        with redirect_stdout(io.StringIO()) as printed:
            for statement in body:
                exec(compile(ast.Module([statement], []), f"cell {count}", "exec"), names)
                names |= given
            value = eval(compile(last, f"cell {count}", "eval"), names) if last else None
        outputs: list[dict[str, Any]] = []
        if text := printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
        if value is not None:
            lines = repr(value).splitlines(keepends=True)
            outputs.append(
                {
                    "output_type": "execute_result",
                    "execution_count": count,
                    "metadata": {},
                    "data": {"text/plain": lines},
                }
            )
        for number in plt.get_fignums():
            png = io.BytesIO()
            plt.figure(number).savefig(png, format="png", dpi=100, metadata={"Software": None})
            data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": ["<Figure>"]}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        plt.close("all")
        cell |= {"execution_count": count, "outputs": outputs}


def as_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its figures by file name."""
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(figures) + 1}.png"
                figures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Figure {len(figures)} of the notebook]({file})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n", figures


def on_files(files: Any, config: Any) -> Any:
    """Add a page and its figures for each notebook."""
    from mkdocs.structure.files import File

    for notebook in sorted(Path(config.docs_dir, NOTEBOOKS).glob("*.ipynb")):
        page, figures = as_page(json.loads(notebook.read_text()), notebook.stem)
        for file, content in {f"{notebook.stem}.md": page, **figures}.items():
            files.append(File.generated(config, f"{NOTEBOOKS}/{file}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link to the page of a notebook, where the file's link is to the notebook itself, as a forge shows it."""
    return markdown.replace(".ipynb)", ".md)")


if __name__ == "__main__":
    path, folder = map(Path, sys.argv[1:])
    loaded = json.loads(path.read_text())
    run(loaded, RUN=folder)
    path.write_text(json.dumps(loaded, indent=1, ensure_ascii=False) + "\n")
