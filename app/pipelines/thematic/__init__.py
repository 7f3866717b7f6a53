"""Thematic analysis of free-text answers: themes with counts, verbatim quotes and insights.

One stage per file, in the order in which a job passes them::

    load ─▶ prepare ─▶ embed ─▶ discover ─▶ name ─▶ quotes ─▶ insights ─▶ check
                       minilm   graph       label                          package
                       or lsa

Every stage is a milestone and leaves a checkpoint. The package uses nothing that another plugin
could not use, and importing it loads neither numpy nor a model.
"""
