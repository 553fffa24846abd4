"""The readers: one foreign format each, all giving descriptions of groups with lazy arrays (:mod:`..core.model`)."""
