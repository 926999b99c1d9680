"""A shop: billing, search and analytics each hear of every order, at their own pace."""
