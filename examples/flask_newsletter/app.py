"""The web side: send an issue, follow its progress, count its readers, stop it."""

from typing import Any, Final

from flask import Flask, Response, request

from flask_newsletter.newsletter import issues, mq
from mx_rmq import InvalidInput, MessageDied, ResultTimeout, ResultUnknown

CODES: Final = {ResultUnknown: 404, ResultTimeout: 409, MessageDied: 410, InvalidInput: 422}

app = Flask(__name__)


@app.post("/issues")
def order() -> Any:
    """Send an issue; answer with its id. The topic checks what was sent."""
    return {"id": issues.sync.produce(request.get_json())}, 202


@app.get("/issues/<id>/events")
def events(id: str) -> Response:
    """Send the issue's status now, and every change until it has ended."""
    return Response(issues.sync.sse(id), headers=mq.sse_headers)


@app.get("/issues/<id>")
def sent(id: str) -> Any:
    """Answer how many mails were sent; wait ten seconds if it is not finished."""
    return {"sent": issues.sync.result(id, timeout=10)}


@app.delete("/issues/<id>")
def abort(id: str) -> Any:
    """Stop sending; answer whether there was something to stop."""
    return {"aborted": mq.sync.abort(issues.name, id, "stopped by the editor")}


def refuse(error: Exception) -> Any:
    """Answer with the status code of an error, and with its text."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return {"detail": str(error)}, code


for kind in CODES:
    app.register_error_handler(kind, refuse)
