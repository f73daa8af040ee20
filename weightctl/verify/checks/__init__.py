"""The checks, one module or folder for each, as `weightctl.verify.CHECKS` lists them."""
