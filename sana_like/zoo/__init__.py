"""The embedded models: one folder each, with weights, configuration and card.

What is not shipped inside (the text encoder) is fetched by :mod:`sana_like.zoo.fetch`.
"""
