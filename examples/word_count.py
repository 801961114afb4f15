"""Map and reduce over files: the first step finds the files and appends one step for each, and a total."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from perdure import CONTEXT, App, Context, Step, Workflow

directory = tempfile.TemporaryDirectory(prefix="perdure-")
app = App(f"sqlite:///{directory.name}/jobs.db")

POEM = """\
the cat sat on the mat
the dog lay on the log
a cat and a dog"""


@app.task(name="words.find")
def find(folder: str, *, ctx: Context = CONTEXT) -> int:
    """Append one step for each file, and one after all of them. They are written when this step succeeds."""
    files = sorted(Path(folder).glob("*.txt"))
    maps = [Step(f"count {file.name}", count.job(str(file)), after=["find"]) for file in files]
    ctx.append([*maps, Step("total", total.job([one.result for one in maps]), after=maps)])
    return len(files)


@app.task(name="words.count")
def count(file: str) -> dict[str, int]:
    return dict(Counter(Path(file).read_text().split()))


@app.task(name="words.total")
def total(counts: list[dict[str, int]]) -> list[tuple[str, int]]:
    every: Counter[str] = Counter()
    for one in counts:
        every.update(one)
    return every.most_common(3)


async def main() -> None:
    flow = Workflow("word count")
    flow.step("find", find.job(directory.name))

    async with app.worker(poll=0.1):
        counting = await app.astart_workflow(flow)
        await counting.ajoin(timeout=30)
        steps = {step.key: step for step in await counting.asteps()}
        print(f"{counting.status}, with {len(steps)} steps: {', '.join(steps)}")
        most = await app.aget_job(steps["total"].id)
        print(f"most often: {', '.join(f'{word} {number}' for word, number in most.result)}")
    await app.aclose()


if __name__ == "__main__":
    import asyncio

    with directory:
        for number, line in enumerate(POEM.splitlines()):
            Path(directory.name, f"{number}.txt").write_text(line)
        asyncio.run(main())
