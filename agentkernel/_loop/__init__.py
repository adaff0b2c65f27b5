"""What is happening: the live side of an agent."""
