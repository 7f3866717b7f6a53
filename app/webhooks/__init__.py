"""Telling endpoints that jobs have ended: which addresses may be asked, one try, and the loop."""
