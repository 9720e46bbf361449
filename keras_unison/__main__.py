"""`python -m keras_unison` is the command `keras-unison`."""

from keras_unison.cli import main

if __name__ == "__main__":
    main()
