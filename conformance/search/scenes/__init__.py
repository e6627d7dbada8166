"""Scenes: situations that bugs of real caches needed, as predicates over the states of the law. A search that never
met a scene has not looked where such a bug would show.
"""
