"""`python -m precast.cli`: the `precast` command without an entry point on the PATH."""

from precast.cli.main import run

if __name__ == "__main__":
    run()
