"""Files that Keras 2 saved, brought into Keras 3.

`load` holds the functions for users; a file goes through `file`, `replicas`,
`architecture`, `weights` and `training`, in this order.
"""
