"""The web side: order a report, follow its progress, read it, abort it."""

import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.sse import EventSourceResponse

from fastapi_reports.reports import Order, Report, mq, reports
from mx_rmq import InvalidInput, MessageDied, ResultTimeout, ResultUnknown, Status, Worker

PAGE: Final = Path(__file__).with_name("page.html")
CODES: Final = {ResultUnknown: 404, ResultTimeout: 409, MessageDied: 410, InvalidInput: 422}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the queue. With REPORTS_WORKER=inside, this process also writes the reports."""
    async with mq, Worker(mq) if os.environ.get("REPORTS_WORKER") == "inside" else nullcontext():
        yield


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with the status code of an error, and with its text."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, code)


app = FastAPI(title="Reports", lifespan=lifespan, exception_handlers=dict.fromkeys(CODES, refuse))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@app.post("/reports", status_code=202)
async def order(order: Order) -> dict[str, str]:
    """Order a report; return its id."""
    return {"id": await reports.produce(order)}


@app.get("/reports/{id}/events", response_class=EventSourceResponse)
async def events(id: str) -> AsyncIterable[Status]:
    """Send the report's status now, and every change until it has ended."""
    async for status in reports.watch(id):
        yield status


@app.get("/reports/{id}")
async def report(id: str) -> Report:
    """Return the report; wait ten seconds for it if it is not finished."""
    return await reports.result(id, timeout=10)


@app.delete("/reports/{id}")
async def abort(id: str) -> bool:
    """Abort the report; return whether there was something to abort."""
    return await mq.admin.abort(reports.name, id, "stopped by the reader")
