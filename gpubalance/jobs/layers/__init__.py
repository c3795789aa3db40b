"""`layers`: a model cut over several devices: does it fit alone, what do its blocks take, where to cut, and the proof.

The arithmetic of cuts and orders is in planning/pipeline/.
"""
