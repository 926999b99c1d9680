"""How to test tasks."""

from mail.models import Mail
from mail.tasks import MailServerAway, send_receipt
from mx_rmq.django.testing import TestCase


class Receipts(TestCase):
    def test_a_receipt_is_sent_again_if_the_mail_server_was_away(self) -> None:
        result = send_receipt.enqueue("flaky@example.org", "thanks")
        done = self.drain()
        self.assertEqual((done.retried, done.completed), (1, 1))
        result.refresh()
        self.assertEqual(result.return_value, Mail.objects.get().pk)
        self.assertIs(result.errors[0].exception_class, MailServerAway)
