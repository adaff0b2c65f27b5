"""Tools: typed Python functions, processes, a workspace folder, approval policies."""
