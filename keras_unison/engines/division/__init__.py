"""How one layer call is divided, and how that is found out, whatever the backend."""
