"""The helper processes, one for each further device, and how they meet."""
