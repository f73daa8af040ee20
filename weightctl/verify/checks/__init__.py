"""The checks, one module or one folder each, as `weightctl.verify.CHECKS` lists them."""
