"""Effects: the driver that runs the engine over real sockets, with one lock and one thread."""
