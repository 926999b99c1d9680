"""The web side: order an export, follow its progress, download it, abort it."""

from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from mx_rmq import MessageDied, ResultTimeout, ResultUnknown, Worker
from starlette_exports.exports import exports, mq

CODES: Final = {ResultUnknown: 404, ResultTimeout: 409, MessageDied: 410, ValueError: 422}


async def order(request: Request) -> JSONResponse:
    """Order an export; answer with its id. The topic checks what was sent."""
    return JSONResponse({"id": await exports.produce(await request.json())}, 202)


async def events(request: Request) -> StreamingResponse:
    """Send the export's status now, and every change until it has ended."""
    return StreamingResponse(exports.sse(request.path_params["id"]), headers=mq.sse_headers)


async def download(request: Request) -> PlainTextResponse:
    """Send the table; wait ten seconds for it if it is not finished."""
    return PlainTextResponse(await exports.result(request.path_params["id"], timeout=10))


async def abort(request: Request) -> JSONResponse:
    """Abort the export; answer whether there was something to abort."""
    id = request.path_params["id"]
    return JSONResponse(await mq.admin.abort(exports.name, id, "stopped by the reader"))


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with the status code of an error, and with its text."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, code)


ROUTES: Final = [
    Route("/exports", order, methods=["POST"]),
    Route("/exports/{id}/events", events),
    Route("/exports/{id}", download),
    Route("/exports/{id}", abort, methods=["DELETE"]),
]
HANDLERS: Final[Any] = dict.fromkeys(CODES, refuse)

app = Starlette(routes=ROUTES, exception_handlers=HANDLERS, lifespan=mq.open_in_app)
app_with_worker = Starlette(
    routes=ROUTES, exception_handlers=HANDLERS, lifespan=Worker(mq).run_in_app
)
