"""What each backend knows about devices: the same functions in every module.

list_devices() -> list[Device]    what the backend sees
simulate(n) -> None               n virtual CPU devices, before it starts
"""
