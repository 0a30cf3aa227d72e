"""The subcommands of `potluck`, one module each; see `potluck.cli`."""
