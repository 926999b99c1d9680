"""The web side: order a report, follow its progress, read it, abort it."""

from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from fastapi_reports.reports import Order, Report, mq, reports
from mx_rmq import InvalidInput, MessageDied, ResultTimeout, ResultUnknown, Worker

PAGE: Final = Path(__file__).with_name("page.html")
CODES: Final = {ResultUnknown: 404, ResultTimeout: 409, MessageDied: 410, InvalidInput: 422}

router = APIRouter()


@router.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@router.post("/reports", status_code=202)
async def order(order: Order) -> dict[str, str]:
    """Order a report; return its id."""
    return {"id": await reports.produce(order)}


@router.get("/reports/{id}/events")
async def events(id: str) -> StreamingResponse:
    """Send the report's status now, and every change until it has ended."""
    return StreamingResponse(reports.sse(id), headers=mq.sse_headers)


@router.get("/reports/{id}")
async def report(id: str) -> Report:
    """Return the report; wait ten seconds for it if it is not finished."""
    return await reports.result(id, timeout=10)


@router.delete("/reports/{id}")
async def abort(id: str) -> bool:
    """Abort the report; return whether there was something to abort."""
    return await mq.admin.abort(reports.name, id, "stopped by the reader")


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with the status code of an error, and with its text."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, code)


def create_app(lifespan: Any) -> FastAPI:
    handlers: Any = dict.fromkeys(CODES, refuse)
    app = FastAPI(title="Reports", lifespan=lifespan, exception_handlers=handlers)
    app.include_router(router)
    return app


app = create_app(mq.open_in_app)
app_with_worker = create_app(Worker(mq).run_in_app)
