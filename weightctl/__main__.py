"""`python -m weightctl` is `weightctl`."""

from weightctl.cli import main

if __name__ == "__main__":
    main()
