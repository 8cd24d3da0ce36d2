"""What goes wrong: the network, behaviour of children, deaths at chosen moments; the ports of a worker that all calls pass."""
