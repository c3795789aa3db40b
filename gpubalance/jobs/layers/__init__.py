"""`layers`: cuts a model over several devices.

Does it fit alone, what do its blocks take, where to cut, and the proof. planning/pipeline/ has the
arithmetic of cuts and orders.
"""
