"""Reading and writing of pickles as data: no global that a pickle names is imported or called."""
