"""`python -m app` and the `haulage` command; import-light, since workers may run it again."""


def main() -> None:
    """Run the command line."""
    from app.cli import command_line  # noqa: PLC0415  heavy, and not for workers

    command_line()


if __name__ == "__main__":
    main()
