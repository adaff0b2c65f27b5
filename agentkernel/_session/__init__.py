"""What happened: the durable side of an agent."""
