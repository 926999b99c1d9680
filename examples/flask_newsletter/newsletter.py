"""The newsletter: what an issue says, and how it is sent. The worker needs only this file."""

import os
import time
from dataclasses import dataclass
from typing import Final

from mx_rmq import Delivery, MessageQueue

MAIL_SECONDS: Final = 0.05  # a real newsletter would talk to a mail server here

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@dataclass
class Issue:
    subject: str
    readers: int = 100


issues = mq.topic("issue.ready", Issue, result=int)


@issues.handler(result_ttl=3600, timeout=600)
def send(issue: Issue, delivery: Delivery) -> int:
    """Send an issue to every reader; return how many got it."""
    for reader in range(1, issue.readers + 1):
        time.sleep(MAIL_SECONDS)
        delivery.progress(reader / issue.readers, f"{reader} of {issue.readers} mails")
    return issue.readers
