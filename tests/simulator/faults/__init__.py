"""What goes wrong: the network, habits of children, deaths at chosen moments; the ports of a worker that all calls pass."""
