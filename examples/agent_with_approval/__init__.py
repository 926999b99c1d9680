"""An agent that fixes a bug: model calls as steps, an approval in the middle, then a deploy."""
