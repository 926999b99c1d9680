"""A shop: billing, search and analytics each get every order, at their own pace."""
