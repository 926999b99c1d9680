"""How to test views and handlers together. `drain` runs the handlers in the test's transaction."""

from mx_rmq.django.testing import TestCase
from orders.models import Order


class Orders(TestCase):
    def place(self, item: str) -> int:
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders/", {"item": item, "email": "ann@example.org"})
        return int(answer.json()["number"])

    def test_an_order_is_shipped_and_its_receipt_is_sent(self) -> None:
        number = self.place("book")
        self.assertProduced("order.placed", number, id=f"order-{number}", times=1)
        self.assertEqual(self.drain().completed, 3)
        self.assertEqual(Order.objects.get(pk=number).state, "shipped")
        self.assertProduced("order.shipped", number)
        self.assertEqual(
            self.client.get(f"/orders/{number}/").json(), {"item": "book", "state": "shipped"}
        )

    def test_an_order_that_is_delivered_twice_is_shipped_once(self) -> None:
        number = self.place("book")
        self.mq.sync.produce("order.placed", number)
        self.drain()
        self.assertProduced("order.shipped", number, times=1)

    def test_nothing_is_produced_for_an_order_that_was_not_stored(self) -> None:
        with self.assertRaises(KeyError), self.captureOnCommitCallbacks(execute=True):
            self.client.post("/orders/", {"item": "book"})
        self.assertNotProduced("order.placed")
