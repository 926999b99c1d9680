"""What a message costs: `mx-rmq bench` measures it on a server of its own, or on yours."""
