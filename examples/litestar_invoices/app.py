"""The web side: start a run, follow its progress, list its invoices, abort it."""

from typing import Any, Final

from litestar import Litestar, Request, Response, delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.response import Stream

from litestar_invoices.invoices import Invoices, Run, mq, runs
from mx_rmq import InvalidInput, MessageDied, ResultTimeout, ResultUnknown, Worker

CODES: Final = {ResultUnknown: 404, ResultTimeout: 409, MessageDied: 410, InvalidInput: 422}


@post("/runs", status_code=202)
async def start(data: JSONBody[Run]) -> dict[str, str]:
    """Start a run; return its id."""
    return {"id": await runs.produce(data)}


@get("/runs/{id:str}/events")
async def events(id: FromPath[str]) -> Stream:
    """Send the run's status now, and every change until it has ended."""
    return Stream(runs.sse(id), headers=mq.sse_headers)


@get("/runs/{id:str}")
async def invoices(id: FromPath[str]) -> Invoices:
    """Return the invoices; wait ten seconds for them if they are not finished."""
    return await runs.result(id, timeout=10)


@delete("/runs/{id:str}", status_code=200)
async def abort(id: FromPath[str]) -> bool:
    """Abort the run; return whether there was something to abort."""
    return await mq.admin.abort(runs.name, id, "stopped by the accountant")


def refuse(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, str]]:
    """Answer with the status code of an error, and with its text."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return Response({"detail": str(error)}, status_code=code)


ROUTES: Final = [start, events, invoices, abort]
HANDLERS: Final[Any] = dict.fromkeys(CODES, refuse)

app = Litestar(ROUTES, exception_handlers=HANDLERS, lifespan=[mq])
app_with_worker = Litestar(ROUTES, exception_handlers=HANDLERS, lifespan=[Worker(mq)])
