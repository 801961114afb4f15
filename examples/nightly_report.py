"""A nightly report: collect figures from three shops, summarise them, wait for an approval, send the report."""

from __future__ import annotations

import tempfile

from perdure import App, Workflow

directory = tempfile.TemporaryDirectory(prefix="perdure-")
app = App(f"sqlite:///{directory.name}/jobs.db")

SALES = {"berlin": [120, 80], "lisbon": [75], "oslo": [60, 65, 10]}


@app.task(name="report.collect")
async def collect(shop: str) -> int:
    return sum(SALES[shop])


@app.task(name="report.summarise")
async def summarise(shops: list[str], figures: list[int]) -> str:
    best = max(zip(figures, shops, strict=True))
    return f"{sum(figures)} in all, most in {best[1]}"


@app.task(name="report.send")
async def send(summary: str) -> str:
    return f"sent: {summary}"


@app.task(name="report.tidy")
async def tidy() -> None:
    """Clean up, whether the report was approved or not."""


def nightly(day: str) -> Workflow:
    flow = Workflow("nightly report", idempotency_key=day, result="send")
    figures = [flow.step(f"collect {shop}", collect.job(shop)) for shop in SALES]
    summary = flow.step("summarise", summarise.job([*SALES], [one.result for one in figures]), after=figures)
    approve = flow.gate("approve", after=[summary], timeout=8 * 3600, on_timeout="canceled")
    flow.step("send", send.job(summary.result), after=[approve])
    flow.step("tidy", tidy.job(), after_done=[approve])
    return flow


async def main() -> None:
    print(nightly("2026-11-16"))
    async with app.worker(poll=0.1):
        report = await app.astart_workflow(nightly("2026-11-16"))
        again = await app.astart_workflow(nightly("2026-11-16"))
        print(f"the same night again: {'the same workflow' if again.id == report.id else 'another one'}")

        while (await report.arefresh()).status != "open":  # noqa: ASYNC110 - polls, as a person would
            await asyncio.sleep(0.01)
        print(f"it is {report.status}: somebody has to decide")
        await app.aresolve_gate(report.id, "approve", "succeeded", output={"by": "ann"})
        print(await report.aget(timeout=30))
    await app.aclose()


if __name__ == "__main__":
    import asyncio

    with directory:
        asyncio.run(main())
