"""The text that models are tried on where none is given."""

from __future__ import annotations

__all__ = ["TEXT"]

# Written for this purpose, so that no model has learned it by heart: plain English of several
# kinds, about as long as one window.
TEXT = """\
The harbour was quiet when the ferry came in, an hour later than the timetable had promised. Two \
men in yellow coats threw the ropes over the bollards, and the passengers went down the narrow \
bridge one after the other, each with a bag in either hand. Most of them had come for the market, \
which is held on the first Saturday of every month. Among them was a woman who had not been on the \
island since she was a child, and who looked around as if she had lost something.

To make the soup, cut three onions and a small piece of ginger, and fry them in butter until they \
are soft. Add the carrots, a litre of water and some salt, and let everything cook for twenty \
minutes. Then take the pot from the stove, because hot soup splashes, and blend it until it is \
smooth.

Light travels about three hundred thousand kilometres in a second, so that it takes a little more \
than eight minutes to reach us from the sun. What we see in the sky is therefore always the past. \
If a star went out tonight, nobody on Earth would know of it for years, and we would go on giving \
it a name, and finding our way home by it.
"""
